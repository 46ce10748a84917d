"""W&B's offline files (`run-ID.wandb`): LevelDB's log framing around protocol buffers, read without wandb."""

import json
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.files import open_log
from kleash.runlog.importers.numbers import number, numbers
from kleash.runlog.importers.protobuf import Value, fields, float64, raw, signed, text
from kleash.runlog.importers.steps import Steps
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.trl_files import as_text, reward_names
from kleash.runlog.importers.vocabulary import Raw
from kleash.runlog.series import SampleText

MAGIC = b":W&B\xe1\xbe\x00"
BLOCK, HEAD = 32_768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
#: Field numbers of Record, and of RunRecord's config.
HISTORY, CONFIG, RUN, EXIT = 2, 5, 17, 18
CONFIG_OF_RUN = 4
#: Of a config's values only texts and numbers matter, and no long ones.
LONGEST_VALUE = 100_000


def read_wandb(paths: Sequence[Path], keep: frozenset[str] | None = None, step_key: str | None = None) -> Raw:
    """The history of an offline run: its file, and one more for each time that it was resumed, in order.

    A file that is cut gives what is whole.

    Raises:
        RunError: it is no file of W&B, holds no history, or two runs are mixed.
    """
    path = paths[-1]
    run, notes = _Run(Table(str(path), keep), Steps(step_key)), list[str]()
    for part in paths:
        run.ended = None
        for record in records(part, notes):
            try:
                run.take(record)
            except ValueError:
                notes.append(f"{part.name} has a record that cannot be read, which is left out")
    table = run.table
    if not len(table.steps):
        more = f" ({notes[0]})" if notes else ""
        raise RunError(f"{path} has no history of W&B{more}")
    tables = dict[int, Path]()
    for part in paths:
        tables |= _tables(part.parent / "files" / "media" / "table")
    return Raw(
        path=path,
        table=table,
        container="W&B",
        config=run.config,
        notes=notes,
        sample_steps=tuple(sorted(tables)),
        samples=lambda wanted: _samples(tables, wanted, reward_names(table)),
        ended=run.ended,
    )


def records(path: Path, notes: list[str]) -> Iterator[bytes]:
    """The records of LevelDB's log; what is damaged goes into the notes, and reading goes on at the next block."""
    with open_log(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise RunError(f"{path} is no offline file of W&B")
        file.seek(0)
        parts: list[bytes] | None = None
        first = True
        while block := file.read(BLOCK):
            at, first = (len(MAGIC) if first else 0), False
            while at + HEAD <= len(block):
                crc, size, kind = struct.unpack("<IHB", block[at : at + HEAD])
                content = block[at + HEAD : at + HEAD + size]
                if kind == 0 and size == 0:
                    break  # the rest of the block is empty
                if len(content) < size:
                    notes.append(f"{path.name} ends in the middle of a record")
                    return
                if zlib.crc32(bytes([kind]) + content) != crc:
                    notes.append(f"{path.name} is damaged; a block of it is left out")
                    parts = None
                    break
                at += HEAD + size
                if kind == FULL:
                    yield content
                elif kind == FIRST:
                    parts = [content]
                elif parts is not None:
                    parts.append(content)
                    if kind == LAST:
                        yield b"".join(parts)
                        parts = None
            if 0 < len(block) - at < HEAD and len(block) < BLOCK:
                notes.append(f"{path.name} ends in the middle of a record")
        if parts is not None:
            notes.append(f"{path.name} ends in the middle of a record")


class _Run:
    """What the records so far come to."""

    def __init__(self, table: Table, steps: Steps) -> None:
        self.table, self.steps, self.config = table, steps, dict[str, Any]()
        self.ended: str | None = None

    def take(self, record: bytes) -> None:
        for kind, content in fields(record):
            if kind == HISTORY:
                self.history(raw(content))
            elif kind == RUN:
                for part, update in fields(raw(content)):
                    if part == CONFIG_OF_RUN:
                        _configure(self.config, raw(update))
            elif kind == CONFIG:
                _configure(self.config, raw(content))
            elif kind == EXIT:
                failed = any(part == 1 and value for part, value in fields(raw(content)))
                self.ended = "failed" if failed else "finished"

    def history(self, history: bytes) -> None:
        row: dict[str, Any] = {}
        counted: int | None = None
        for part, content in fields(history):
            if part == 1:
                key, value = _item(raw(content))
                row[key] = value
            elif part == 2:
                counted = next((signed(value) for number_, value in fields(raw(content)) if number_ == 1), 0)
        step = self.steps.of(row, counted)
        if step is not None:
            files = tuple(key.removesuffix("_type") for key in row if key.endswith("/_type"))  # tables, pictures, …
            add = self.table.append if self.steps.several else self.table.add
            add(step, [(key, value) for key, value in numbers(row) if not key.startswith(("_", *files))])


def _item(item: bytes) -> tuple[str, Any]:
    """Key and value of a HistoryItem or a config's item: JSON, or one of the typed fields."""
    key, nested, value = "", [], None
    for part, content in fields(item):
        if part == 1:
            key = text(content)
        elif part == 2:
            nested.append(text(content))
        else:
            value = _typed(part, content, value)
    return key or "/".join(nested), value


def _typed(part: int, content: Value, value: Any) -> Any:
    if part == 16 or part == 8:
        return _json(raw(content))
    if part == 4:
        return bool(content)
    if part == 5:
        return signed(content)
    if part == 6:
        return float64(content)
    return text(content) if part == 7 else value


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if len(content) < LONGEST_VALUE else None
    except (ValueError, RecursionError):
        return None


def _configure(config: dict[str, Any], update: bytes) -> None:
    for part, content in fields(update):
        if part == 1:
            key, value = _item(raw(content))
            if isinstance(value, int | float | str | bool | dict | list):
                config[key] = value


def _tables(folder: Path) -> dict[int, Path]:
    """TRL's tables of completions, by the step in their first row."""
    found = {}
    for path in sorted(folder.glob("completions_*.table.json")):
        with open_log(path) as file:
            match = re.search(rb'"data":\s*\[\[(\d{1,18}),', file.read(4096))
        if match:
            found[int(match[1])] = path
    return found


def _samples(tables: dict[int, Path], wanted: tuple[int, ...] | None, rewards: tuple[str, ...]) -> list[SampleText]:
    """The samples in W&B's tables.

    Raises:
        RunError: a table is damaged.
    """
    found = []
    for step in sorted(tables if wanted is None else set(wanted) & tables.keys()):
        try:
            table = json.loads(tables[step].read_bytes())
            rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"cannot read the table {tables[step]}: {error}") from error
        for row in rows:
            if row.get("completion") is None:
                continue
            scores = [score for name in rewards if (score := number(row.get(name))) is not None and score == score]
            found.append(
                SampleText(
                    step=step,
                    prompt=as_text(row.get("prompt")),
                    completion=as_text(row.get("completion")),
                    score=sum(scores) if scores else None,
                )
            )
    return found
