"""Which log lies at a path, and its way into a TrainLog."""

import json
import struct
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.findings import Found
from kleash.runlog.importers import boards, kleash, mapped, others, tensorboard, trackio, trl, trl_files, verl, wandb
from kleash.runlog.importers.console import read_console
from kleash.runlog.importers.csv_table import read_csv
from kleash.runlog.importers.files import lines, looks_binary, open_log
from kleash.runlog.importers.folder import Folder, searched
from kleash.runlog.importers.jsonl import parts_of_one_run, read_jsonl
from kleash.runlog.importers.protobuf import masked_crc32c
from kleash.runlog.importers.rollouts import read_scores, samples_in
from kleash.runlog.importers.understand import understand
from kleash.runlog.importers.vocabulary import Raw, Vocabulary
from kleash.runlog.series import TrainLog

#: In this order: our own keys are nobody else's, TRL's are plain ones, OpenRLHF's plainer, and a table's the plainest.
VOCABULARIES: tuple[Vocabulary, ...] = (
    boards.BOARDS,
    verl.VERL,
    others.NEMO_RL,
    others.PRIME_RL,
    others.SLIME,
    others.MS_SWIFT,
    *trl.by_arguments(None),
    others.OPENRLHF,
    mapped.ROLLOUTS,
    mapped.PLAIN,
)


def read_log(path: str | Path, *, columns: Mapping[str, str] | None = None) -> TrainLog:
    """The log at a path: a run's directory, a checkpoint, or the log's file.

    Args:
        columns: what the log's keys mean ({"reward": "score", "kl_ref": "my_kl:nats/token"}), for logs of no known
            trainer; nothing else is read then.

    Raises:
        RunError: there is no log, or none that can be read.
        UsageError: `columns` names what does not exist.
    """
    path = Path(path).expanduser()
    try:
        return _read(path, columns)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error


def _read(path: Path, columns: Mapping[str, str] | None) -> TrainLog:
    if not path.exists():
        raise RunError(f"there is no {path}")
    chosen = mapped.parsed(columns) if columns is not None else None
    if chosen is None and (own := _own_run(path)) is not None:
        return kleash.read_run(own)
    raw, kind = _directory(path, chosen) if path.is_dir() else _file(path, chosen)
    if chosen is not None:
        return understand(raw, [chosen.vocabulary(raw)])
    return understand(raw, (*trl.by_arguments(kind), *VOCABULARIES) if kind else VOCABULARIES)


def _own_run(path: Path) -> Path | None:
    """The run directory of ours that the path, or its file of events, is of."""
    own = path if path.is_dir() else path.parent if path.name == kleash.EVENTS else None
    return own if own is not None and (own / kleash.EVENTS).is_file() else None


class Again:
    """A log that is read again and again. Of a run of ours each time only what is new; of others all of it."""

    def __init__(self, path: str | Path, columns: Mapping[str, str] | None = None) -> None:
        self._path, self._columns = Path(path).expanduser(), columns
        self._own: kleash.OwnLog | None = None

    def read(self) -> TrainLog:
        """
        Raises:
            RunError, UsageError: as `read_log`.
        """
        own = None if self._columns is not None else _own_run(self._path)
        if own is None:
            self._own = None
            return read_log(self._path, columns=self._columns)
        self._own = self._own or kleash.OwnLog(own)
        try:
            return self._own.read()
        except OSError as error:
            raise RunError(f"cannot read {own}: {error.strerror or error}") from error

    @property
    def found(self) -> list[Found]:
        """What the monitor found while a run of ours went on."""
        return self._own.found if self._own else []


def _file(path: Path, chosen: mapped.Chosen | None) -> tuple[Raw, str | None]:
    """A file's rows, and the class of the run's arguments where it tells one."""
    keep, step = (chosen.keys, chosen.step) if chosen else (None, None)
    match kind_of(path):
        case "trainer_state":
            return trl_files.read_state(path, keep)
        case "wandb":
            return wandb.read_wandb([path], keep, step), None
        case "sqlite":
            return trackio.read_trackio(path, keep, step), None
        case "tensorboard":
            return tensorboard.read_tensorboard([path], keep), None
        case "jsonl":
            return read_jsonl([path], keep, step), None
        case "csv":
            return read_csv(path, keep, step), None
        case _:
            return read_console(path, keep), None


def kind_of(path: Path) -> str:
    """What a file is, by its first bytes.

    Raises:
        RunError: it is empty, or nothing that kleash reads.
    """
    with open_log(path) as file:
        start = file.read(4096)
    if not start.strip():
        raise RunError(f"{path} is empty")
    if start.startswith(wandb.MAGIC):
        return "wandb"
    if start.startswith(trackio.MAGIC):
        return "sqlite"
    if len(start) >= 12 and masked_crc32c(start[:8]) == struct.unpack("<I", start[8:12])[0]:
        return "tensorboard"
    if looks_binary(path):
        raise RunError(f"{path} is neither text nor a log that kleash reads (TensorBoard, W&B, trackio)")
    if path.name == trl_files.STATE or b'"log_history"' in start:
        return "trainer_state"
    if path.suffix in (".csv", ".tsv"):
        return "csv"
    first = [line for _, line, _ in islice(lines(path), 20) if line.strip()]
    objects = sum(_is_object(line) for line in first)
    if path.suffix == ".jsonl" or objects * 2 > len(first):
        return "jsonl"
    names = max((first[0].split(mark) for mark in (b",", b";", b"\t")), key=len)
    return "csv" if {name.strip().lower() for name in names} & {b"step", b"_step", b"global_step"} else "console"


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _directory(path: Path, chosen: mapped.Chosen | None) -> tuple[Raw, str | None]:
    """The log in a directory, with what lies around it: checkpoints and samples."""
    folder = searched(path)
    keep = chosen.keys if chosen else None
    state, notes = trl_files.state_in(path)
    if state is not None:
        raw, kind = trl_files.read_state(state, keep, run=not trl_files.is_checkpoint(path))
        raw.notes += notes
        return _newer(raw, folder, keep), kind
    raw, kind = _first_readable(path, folder, chosen)
    if not raw.checkpoints:
        raw.checkpoints = trl_files.checkpoints_in(path)
    if not raw.sample_steps and folder.samples:
        raw.sample_steps, raw.samples = samples_in(folder.samples)
    return raw, kind


def _newer(raw: Raw, folder: Folder, keep: frozenset[str] | None) -> Raw:
    """The state is written at checkpoints only; where another log goes on beyond it, that one's rows count."""
    live: list[Callable[[], Raw]] = []
    if folder.events:
        live.append(lambda: tensorboard.read_tensorboard(folder.events, keep))
    if logging := [file for file in folder.texts if file.name == "logging.jsonl"]:
        live.append(lambda: read_jsonl(logging[:1], keep))
    for read in live:
        try:
            other = read()
        except RunError as error:
            raw.notes.append(str(error))
            continue
        if other.table.highest > raw.table.highest:
            raw.notes = [
                *other.notes,
                f"from {other.path}, which goes on beyond the last checkpoint's state",
                *raw.notes,
            ]
            raw.table, raw.ended = other.table, None
    return raw


def _first_readable(path: Path, folder: Folder, chosen: mapped.Chosen | None) -> tuple[Raw, str | None]:
    """The newest log that reads, logger's files before texts."""
    keep, step = (chosen.keys, chosen.step) if chosen else (None, None)
    tried: list[str] = []
    ways: list[tuple[Callable[[], Raw], str]] = []  # with a note where others are passed over
    for number, files in enumerate(folder.wandb):
        note = _which(files[-1].parent.name, number, len(folder.wandb), "runs")
        ways.append((lambda files=files: wandb.read_wandb(files, keep, step), note))
    ways += [(lambda file=file: trackio.read_trackio(file, keep, step), "") for file in folder.databases]
    if folder.events:
        note = _which(folder.events[0].parent.name, 0, folder.event_runs, "directories of event files")
        ways.append((lambda: tensorboard.read_tensorboard(folder.events, keep), note))
    if folder.metrics:
        ways.append((lambda: read_jsonl(parts_of_one_run(folder.metrics), keep, step), ""))
    ways += [(lambda file=file: _file(file, chosen)[0], "") for file in folder.texts]
    if folder.samples and chosen is None:
        ways.append((lambda: read_scores(folder.samples), ""))
    for way, note in ways:
        try:
            raw = way()
        except RunError as error:
            tried.append(str(error))
            continue
        raw.notes += [note] if note else []
        return raw, None
    if tried:
        raise RunError(tried[0] if len(tried) == 1 else f"no log in {path} can be read; the first: {tried[0]}")
    early = " (TRL writes it with the first checkpoint, at save_steps)" if (path / "completions").is_dir() else ""
    raise RunError(
        f"{path} has no training log that kleash knows: no trainer_state.json{early}, event file, .wandb, trackio "
        "database, JSONL, CSV or console log"
    )


def _which(name: str, number: int, count: int, what: str) -> str:
    """Which of several was read, the newest being number 0; nothing where there is one."""
    if count == 1:
        return ""
    return (
        f"{name}, of {count} {what} here: newer ones cannot be read"
        if number
        else f"the newest of {count} {what} here: {name}"
    )
