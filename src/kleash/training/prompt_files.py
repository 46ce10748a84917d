"""Where prompts come from: a file, a directory of files, a saved data set, one on the hub. Rows as they are there."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kleash.errors import UsageError

#: owner/name of a data set on the hub, then :configuration where it has several; @split is cut off before.
_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
#: The split of a hub data set where none is named.
DEFAULT_SPLIT = "train"


def read_rows(source: str | Path) -> list[Any]:
    """All rows, in order: strings of a text file, mappings of anything else.

    Args:
        source: a .jsonl, .txt, .csv or .parquet file; a directory of files of one of these kinds, taken in the order
            of their names; a directory that `datasets` saved, with "@split" where it holds several; or a hub data set,
            "owner/name", "owner/name:configuration", "owner/name@split".

    Raises:
        UsageError: nothing there, a kind of file that is not read, or content that is not of its kind.
    """
    path = Path(source)
    if path.is_dir():
        return _from_directory(path, None)
    if path.suffix in READERS:
        return _from_file(path)
    if path.exists():
        raise UsageError(f"prompts are read from {_kinds()} files, a directory of them, or a data set, not {path}")
    name, _, split = str(source).rpartition("@") if "@" in str(source) else (str(source), "", None)
    if Path(name).is_dir():
        return _from_directory(Path(name), split)
    hub = _HUB.fullmatch(name)
    if hub is None:
        raise UsageError(f'there is no prompt file or directory {source}; a data set on the hub is named "owner/name"')
    return from_hub(hub[1], hub[2], split or DEFAULT_SPLIT)


def from_hub(name: str, configuration: str | None, split: str) -> list[Any]:
    """The rows of one split of a data set, through the library `datasets` and its cache.

    Raises:
        UsageError: it cannot be had; with the first line of what the library says.
    """
    from datasets import load_dataset

    try:
        return list(load_dataset(name, configuration, split=split))
    except Exception as error:  # of the network, of the hub's own kinds, or a choice that the data set leaves open
        raise UsageError(
            f"there is no file or directory {name} here, and as a data set on the hub (split {split!r}) it cannot be "
            f"loaded: {_first_line(error)}"
        ) from None


def _from_directory(path: Path, split: str | None) -> list[Any]:
    if (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file():
        return _saved(path, split)
    if split is not None:
        raise UsageError(f"{path} holds files, not splits; leave out @{split}, or name a directory of the split's own")
    files = sorted(p for p in path.iterdir() if p.suffix in READERS and not p.name.startswith("."))
    kinds = sorted({file.suffix for file in files})
    if not files:
        raise UsageError(f"the directory {path} holds no {_kinds()} files")
    if len(kinds) > 1:
        raise UsageError(f"the directory {path} holds {' and '.join(kinds)} files; keep prompts of one kind in it")
    return [row for file in files for row in _from_file(file)]


def _saved(path: Path, split: str | None) -> list[Any]:
    """What `save_to_disk` wrote: one split, or several by name."""
    from datasets import DatasetDict, load_from_disk

    saved = load_from_disk(str(path))
    if not isinstance(saved, DatasetDict):
        if split is not None:
            raise UsageError(f"{path} holds one data set without splits; leave out @{split}")
        return list(saved)
    if split not in saved:
        raise UsageError(f'{path} holds the splits {", ".join(map(str, saved))}; name one of them, as "{path}@SPLIT"')
    return list(saved[split])


def _from_file(path: Path) -> list[Any]:
    try:
        return READERS[path.suffix](path)
    except FileNotFoundError:
        raise UsageError(f"there is no prompt file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompt file {path} cannot be read: {error}") from None


def _text(path: Path) -> list[Any]:
    return [line for line in _lines(path) if line.strip()]


def _jsonl(path: Path) -> list[Any]:
    rows: list[Any] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: not JSON ({error})") from None
    return rows


def _lines(path: Path) -> list[str]:
    # Only at \n: JSON and text may hold other line separators (U+2028) inside a prompt.
    return path.read_text(encoding="utf-8-sig").split("\n")


def _csv(path: Path) -> list[Any]:
    """Every cell is text, as it stands: whether "007" or "NA" is a number or nothing is not guessed."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) < len(header):
                raise UsageError(f"{path}: a column name stands twice in {', '.join(header)}")
            rows: list[Any] = []
            for cells in reader:
                if cells and len(cells) != len(header):
                    raise UsageError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells under {len(header)} column names; "
                        'a cell that holds a comma or a line end needs "quotes"'
                    )
                if cells:
                    rows.append(dict(zip(header, cells, strict=True)))
            return rows
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: not CSV ({error})") from None


def _parquet(path: Path) -> list[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise UsageError(f"{path} is not a parquet file: {_first_line(error)}") from None


READERS: dict[str, Callable[[Path], list[Any]]] = {".jsonl": _jsonl, ".txt": _text, ".csv": _csv, ".parquet": _parquet}


def _kinds() -> str:
    return ", ".join(READERS)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
