"""Prompts and their columns, and the order in which steps take them."""

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kleash.errors import UsageError
from kleash.records import Prompt
from kleash.training.config import DataSpec
from kleash.training.prompt_files import read_rows


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


def read_prompts(source: str | Path, column: str = "prompt") -> Prompts:
    """The prompts of anything that `read_rows` reads.

    Raises:
        UsageError: it cannot be read, or `as_prompts` refuses what it holds.
    """
    return as_prompts(read_rows(source), column)


def as_prompts(rows: Iterable[Any], column: str = "prompt") -> Prompts:
    """Strings, message lists, or mappings with a prompt column (a list of dicts, a datasets.Dataset).

    Raises:
        UsageError: no rows, mixed rows, a row without the prompt column, or columns that differ between rows.
    """
    if isinstance(rows, Mapping) or hasattr(rows, "columns"):
        raise UsageError(
            "prompts must be rows, and these are columns or splits: give one split of a DatasetDict, "
            'df.to_dict("records") of a data frame, or a list of {"prompt": …}'
        )
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


def held_out_prompts(spec: DataSpec) -> Prompts | None:
    """What data.held_out names, as it is asked; None where nothing is held out.

    Raises:
        UsageError: as `read_prompts`; it says that the held-out prompts are meant.
    """
    if spec.held_out is None:
        return None
    try:
        return asked(read_prompts(spec.held_out, spec.column), spec)
    except UsageError as error:
        raise UsageError(f"data.held_out: {error}") from None


def asked(prompts: Prompts, spec: DataSpec) -> Prompts:
    """Prompts as [data] has them asked."""
    return conversations(prompts, system=spec.system, chat=spec.chat)


def conversations(prompts: Prompts, *, system: str | None = None, chat: bool = False) -> Prompts:
    """With `system` before each; with `chat` or a system prompt a text is a user's message.

    Raises:
        UsageError: a prompt has a system message of its own beside `system`; it is named by its index.
    """
    if system is None and not chat:
        return prompts
    before = [] if system is None else [{"role": "system", "content": system}]
    asked: list[Prompt] = []
    for index, prompt in enumerate(prompts.prompts):
        messages: Any = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if before and any(isinstance(m, Mapping) and m.get("role") == "system" for m in messages or []):
            raise UsageError(
                f"prompt {index} has a system message of its own, and data.system is given for all prompts; keep one"
            )
        asked.append([*before, *messages] if isinstance(messages, list) else messages)
    return Prompts(asked, prompts.columns)


def digest(prompts: Prompts) -> dict[str, Any]:
    """Number and sha256 of prompts and columns, in their order: taken when a run starts, verified when it resumes.

    Of what they hold, not of the file: another line end or another format of the same rows changes nothing.
    """
    content = json.dumps(_plain([prompts.prompts, prompts.columns]))
    return {"number": len(prompts), "content": hashlib.sha256(content.encode()).hexdigest()}


def _plain(value: Any) -> Any:
    """As JSON can hold it, whatever the order of a table's keys; of an object its text."""
    if isinstance(value, Mapping):
        return sorted([str(key), _plain(item)] for key, item in value.items())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    kind = type(value)
    nameless = kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__  # it would tell its place in memory
    return kind.__qualname__ if nameless else str(value)


def indices(step: int, count: int, total: int, seed: int) -> list[int]:
    """Which prompts a step takes: each epoch is a fresh shuffle cut into runs of `count`; the rest of it is left out.

    A function of its arguments alone, so a resumed run needs no state to go on where it stopped.

    Raises:
        UsageError: more prompts a step than there are.
    """
    if count > total:
        raise UsageError(
            f"train.prompts_per_step = {count} exceeds the {total} prompts there are: give more prompts, "
            f"or at most {total} a step"
        )
    per_epoch = total // count
    order = list(range(total))
    random.Random(f"{seed}/{step // per_epoch}").shuffle(order)
    first = (step % per_epoch) * count
    return order[first : first + count]
