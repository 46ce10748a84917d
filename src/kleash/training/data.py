"""Prompts and their columns, and the order in which steps take them."""

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kleash.errors import UsageError
from kleash.records import Prompt


class Prompts(NamedTuple):
    """prompts[i] with columns[name][i]."""

    prompts: list[Prompt]
    columns: dict[str, list[Any]]

    def __len__(self) -> int:  # of prompts, not of fields
        return len(self.prompts)

    def take(self, index: list[int], repeat: int) -> tuple[list[Prompt], dict[str, list[Any]]]:
        """These prompts and columns, each `repeat` times in a row: one entry per completion."""
        rows = [i for i in index for _ in range(repeat)]
        return [self.prompts[i] for i in rows], {n: [c[i] for i in rows] for n, c in self.columns.items()}


def read_prompts(path: str | Path, column: str = "prompt") -> Prompts:
    """A .jsonl file with one object a line, or a .txt file with one prompt a line.

    Raises:
        UsageError: no such file, another kind of file, a line that is not an object, or a missing column.
    """
    path = Path(path)
    if path.suffix not in (".jsonl", ".txt"):
        raise UsageError(f"prompts are read from .jsonl (one object a line) or .txt (one prompt a line), not {path}")
    try:
        # Only at \n: JSON and text may hold other line separators (U+2028) inside a prompt.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompt file {path} cannot be read: {error}") from None
    if path.suffix == ".txt":
        return as_prompts([line for line in lines if line.strip()], column)
    rows: list[Any] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error})") from None
    return as_prompts(rows, column)


def as_prompts(rows: Iterable[Any], column: str = "prompt") -> Prompts:
    """Strings, message lists, or mappings with a prompt column (a list of dicts, a datasets.Dataset).

    Raises:
        UsageError: no rows, mixed rows, a row without the prompt column, or columns that differ between rows.
    """
    rows = list(rows)
    if not rows:
        raise UsageError("there are no prompts")
    if not all(isinstance(row, Mapping) for row in rows):
        bad = next((i for i, row in enumerate(rows) if not isinstance(row, str | list | Mapping)), None)
        if bad is not None:
            raise UsageError(f"prompt {bad} must be text, a list of messages, or a table row; it is {rows[bad]!r}")
        table = next((i for i, row in enumerate(rows) if isinstance(row, Mapping)), None)
        if table is not None:
            raise UsageError(f"prompt {table} is a table row and others are not; give all of them in one form")
        return Prompts(rows, {})
    names = set(rows[0])
    taken = sorted(names & {"prompts", "completions"} - {column})
    if taken:
        raise UsageError(
            f"the column {taken[0]!r} has the name of something that every reward is given; call it something else"
        )
    for i, row in enumerate(rows):
        if column not in row:
            raise UsageError(f"row {i} has no column {column!r}; it has {', '.join(sorted(map(str, row)))}")
        if set(row) != names:
            raise UsageError(f"row {i} has the columns {sorted(row)}, and row 0 has {sorted(names)}; they must agree")
    return Prompts(
        [row[column] for row in rows], {name: [row[name] for row in rows] for name in rows[0] if name != column}
    )


def indices(step: int, count: int, total: int, seed: int) -> list[int]:
    """Which prompts a step takes: each epoch is a fresh shuffle cut into runs of `count`; the rest of it is left out.

    A function of its arguments alone, so a resumed run needs no state to go on where it stopped.

    Raises:
        UsageError: more prompts a step than there are.
    """
    if count > total:
        raise UsageError(f"train.prompts_per_step = {count} exceeds the {total} prompts there are")
    per_epoch = total // count
    order = list(range(total))
    random.Random(f"{seed}/{step // per_epoch}").shuffle(order)
    first = (step % per_epoch) * count
    return order[first : first + count]
