"""One JSON object a line: verl's file logger, prime-rl's metrics.jsonl, ms-swift's logging.jsonl, and any other."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.files import lines
from kleash.runlog.importers.numbers import numbers
from kleash.runlog.importers.steps import Steps
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.vocabulary import Raw

#: ms-swift's step, "5/100": no number, but a sign.
COUNTER = "global_step/max_steps"


def read_jsonl(paths: Sequence[Path], keep: frozenset[str] | None = None, step_key: str | None = None) -> Raw:
    """The rows of one file, or of the files of one run's parts (trainer and orchestrator).

    Raises:
        RunError: hardly a line is a JSON object with a step, or two runs are mixed.
    """
    where = paths[0] if len(paths) == 1 else paths[0].parent
    raw = Raw(path=where, table=Table(str(where), keep), container="JSONL")
    for path in paths:
        _read(path, raw, Steps(step_key))
        raw.table.next_source()
    return raw


def parts_of_one_run(paths: Sequence[Path]) -> list[Path]:
    """The newest file and those that hold other keys than it, as prime-rl's trainer and orchestrator do."""
    newest, *rest = sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
    kept, seen = [newest], _keys(newest)
    for path in rest:
        keys = _keys(path)
        if not keys & seen:
            kept.append(path)
            seen |= keys
    return sorted(kept)


def _keys(path: Path) -> set[str]:
    """What the first row measures; its step and clocks are in every part."""
    first = next((row for _, line, _ in islice(lines(path), 20) if (row := _object(line))), {})
    return {key for key in first if not key.startswith(("step", "time", "perf/", "system/", "_"))}


def _read(path: Path, raw: Raw, steps: Steps) -> None:
    bad = stepless = good = 0
    table, notes = raw.table, raw.notes
    for _, line, ended in lines(path):
        if not line or line.isspace():
            continue
        row = _object(line)
        if row is None:
            if ended:
                bad += 1
            else:
                notes.append(f"the last line of {path.name} is torn, and left out")
            continue
        if row.keys() == {"step", "data"} and isinstance(row["data"], dict):  # verl's file logger
            step, row = steps.of(row), row["data"]
        else:
            step = steps.of(row)
        if step is None:
            stepless += 1
            continue
        if not good and COUNTER in row:
            raw.marks |= {COUNTER}
        good += 1
        (table.append if steps.several else table.add)(step, numbers(row))
    if not good:
        why = "is empty" if not (bad or stepless or notes) else "has no line that is a JSON object with a step"
        raise RunError(f'{path} {why}; kleash reads one row a line: {{"step": 1, "reward": 0.5, …}}')
    if bad:
        notes.append(f"{bad} lines of {path.name} are no JSON objects, and left out")
    if stepless:
        notes.append(f"{stepless} rows of {path.name} have no step, and are left out")


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode())  # of bytes, json would guess the encoding
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
