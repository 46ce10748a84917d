"""Findings as alerts in trackio's own database, where its dashboard shows them. Without the package.

The table is that of trackio 0.43; a finding's identifier is made from what it is, so that any number of watchers write
it once.
"""

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kleash.errors import UsageError
from kleash.report.watch.case import Case
from kleash.runlog.findings import LEVELS, Finding, told

COLUMNS = ("run_id", "timestamp", "run_name", "title", "text", "level", "step", "alert_id")


@dataclass(frozen=True, slots=True)
class Trackio:
    """The database that is being watched."""

    @property
    def name(self) -> str:
        return "trackio"

    def tell(self, case: Case, finding: Finding) -> None:
        with closing(sqlite3.connect(f"{database(case).as_uri()}?mode=rw", uri=True, timeout=5)) as opened, opened:
            there = [row[1] for row in opened.execute("PRAGMA table_info(alerts)")]
            names = [name for name in COLUMNS if name in there]
            run = "run_id" if "run_id" in there else "run_name"
            run_id, run_name = opened.execute(
                f"SELECT {run}, run_name FROM metrics ORDER BY id DESC LIMIT 1"  # the run that the importer reads
            ).fetchone()
            values = {
                "run_id": run_id,
                "timestamp": datetime.now(UTC).isoformat(),
                "run_name": run_name,
                "title": finding.headline,
                "text": told(finding),
                "level": LEVELS[finding.severity],
                "step": finding.alarm_step,
                "alert_id": identifier(str(run_id), finding),
            }
            marks = ", ".join("?" * len(names))
            opened.execute(
                f"INSERT OR IGNORE INTO alerts ({', '.join(names)}) VALUES ({marks})", [values[name] for name in names]
            )


def database(case: Case) -> Path:
    """
    Raises:
        UsageError: what is watched is no database.
    """
    path = case.log.path.resolve()
    start = b""
    if path.is_file():
        with path.open("rb") as file:
            start = file.read(6)
    if start != b"SQLite":
        raise UsageError(f"{case.path} is not trackio's: --alert trackio writes into the database that is watched")
    return path


def identifier(run: str, finding: Finding) -> str:
    return "kleash-" + hashlib.sha256(f"{run}/{finding.rule}/{finding.alarm_step}".encode()).hexdigest()[:24]
