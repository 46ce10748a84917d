"""What the monitor says of a log as plain data: `kleash watch --json`, and what an alert carries."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from kleash.monitor.record import RECORD
from kleash.report.watch import words
from kleash.report.watch.case import Case
from kleash.runlog.findings import Finding


def record(case: Case) -> dict[str, Any]:
    """JSON without NaN: what is not a number is null."""
    log, said = case.log, case.said
    return plain(
        {
            "path": str(case.path),
            "verdict": said.verdict,
            "exit": case.exit_code,
            "headline": said.headline,
            "since": said.since,
            "within": said.within,
            "log": {
                "trainer": log.trainer,
                "label": log.label,
                "rows": len(log.step),
                "first_step": int(log.step[0]),
                "last_step": int(log.step[-1]),
                "smoothing": log.smoothing,
                "ended": log.ended,
                "kl": {name: asdict(tag) for name, tag in log.kl.items()},
                "notes": log.notes,
            },
            "findings": [of_finding(finding) for finding in said.findings],
            "evaluated": said.evaluated,
            "not_evaluated": [asdict(one) for one in said.not_evaluated],
            "checkpoints": [{"step": step, "path": path, "kl": kl} for step, path, kl in checkpoints(case)],
            "clean": said.clean,
            "suspect": said.suspect,
            "drift": words.drift_command(case),
            "record": asdict(RECORD) | {"most_false": RECORD.most_false},
        }
    )


def of_finding(finding: Finding) -> dict[str, Any]:
    return plain(asdict(finding))


def checkpoints(case: Case) -> list[tuple[int, str, float | None]]:
    """Step, path, and kl_ref at the last row before, per sequence (per token where the lengths are not known)."""
    log = case.log
    kl = log.column("kl_ref_sequence")
    kl = log.column("kl_ref") if kl is None else kl
    found = []
    for saved in log.checkpoints:
        rows = np.flatnonzero((log.step <= saved.step) & np.isfinite(kl)) if kl is not None else []
        found.append((saved.step, str(saved.path), float(kl[rows[-1]]) if kl is not None and len(rows) else None))
    return found


def plain(value: Any) -> Any:
    """Paths as text, tuples as lists, numbers that are none as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
