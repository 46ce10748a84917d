"""A table of numbers as CSV: one row a step, names in the first line."""

import csv
from collections.abc import Iterator
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.importers.files import lines
from kleash.runlog.importers.numbers import spelled
from kleash.runlog.importers.steps import Steps
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.vocabulary import Raw


def read_csv(path: Path, keep: frozenset[str] | None = None, step_key: str | None = None) -> Raw:
    """The rows of a CSV file (comma, semicolon or tab). An empty cell is no number.

    Raises:
        RunError: no header, no step, or no row.
    """
    state = {"torn": False}
    texts = _texts(path, state)
    header = next(texts, "")
    separator = max(",;\t", key=header.count)
    names = next(_cells(path, iter([header]), separator), [])
    names = [name.strip().lstrip("\ufeff") for name in names]
    steps = Steps(step_key)
    if steps.of(dict.fromkeys(names, "0")) is None:
        wanted = step_key or "step"
        raise RunError(f"{path} has no column {wanted!r} in its first line; name it: --columns step=NAME")
    table, left, notes = Table(str(path), keep), 0, []
    for cells in _cells(path, texts, separator):
        row = dict(zip(names, cells, strict=False))
        step = steps.of(row)
        if step is None or len(cells) != len(names):
            left += bool(cells)
            continue
        items = ((name, spelled(cell)) for name, cell in row.items() if cell.strip())
        table.add(step, [(name, value) for name, value in items if value is not None])
    if left:
        notes.append(f"{left} lines of {path.name} are no rows, and left out")
    if state["torn"]:
        notes.append("the last line has no end, and is left out: it may be torn")
    return Raw(path=path, table=table, container="CSV", notes=notes)


def _cells(path: Path, texts: Iterator[str], separator: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(texts, delimiter=separator)
    except csv.Error as error:
        raise RunError(f"cannot read {path} as CSV: {error}") from error


def _texts(path: Path, state: dict[str, bool]) -> Iterator[str]:
    for _, line, ended in lines(path):
        if not ended and line:
            state["torn"] = True
            return
        yield line.decode("utf-8", errors="replace").replace("\0", "")
