"""trackio's database, one a project: SQLite, opened to read only. Metrics are JSON as text or bytes, NaN a string."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.numbers import numbers, whole
from kleash.runlog.importers.steps import Steps
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.vocabulary import Raw

MAGIC = b"SQLite format 3\0"


def read_trackio(path: Path, keep: frozenset[str] | None = None, step_key: str | None = None) -> Raw:
    """The newest run of a project.

    Raises:
        RunError: no database of trackio, or no metric in it.
    """
    table, steps, notes = Table(str(path), keep), Steps(step_key), []
    try:
        with closing(_open(path)) as database:
            runs = _runs(database)
            if not runs:
                raise RunError(f"{path} has no run with a metric")
            name = runs[-1]
            if len(runs) > 1:
                notes.append(f"the newest of the {len(runs)} runs in {path.name}: {name}")
            left = 0
            for step, row in _rows(database, name):
                step = steps.of(row, step)
                left += step is None
                if step is not None:
                    (table.append if steps.several else table.add)(step, numbers(row))
            config = _config(database, name)
    except sqlite3.Error as error:
        raise RunError(f"cannot read {path} as a database of trackio: {error}") from error
    if left:
        notes.append(f"{left} rows have no step, and are left out")
    return Raw(path=path, table=table, container="trackio", config=config, notes=notes)


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)


def _runs(database: sqlite3.Connection) -> list[str]:
    query = "SELECT run_name FROM metrics GROUP BY run_name ORDER BY MAX(id)"
    return [str(row[0]) for row in database.execute(query)]


def _rows(database: sqlite3.Connection, name: str) -> Iterator[tuple[int | None, dict[str, Any]]]:
    for step, content in database.execute("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id", (name,)):
        row = _json(content)
        if row is not None:
            yield whole(step), row


def _config(database: sqlite3.Connection, name: str) -> dict[str, Any]:
    """Older databases have no table of configs."""
    try:
        found = database.execute("SELECT config FROM configs WHERE run_name = ? ORDER BY id DESC", (name,)).fetchone()
    except sqlite3.OperationalError:
        return {}
    return (_json(found[0]) if found else None) or {}


def _json(content: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(content)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
