"""What TRL leaves on disk: `checkpoint-N/trainer_state.json`, its arguments, and `completions/*.parquet`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.files import open_log
from kleash.runlog.importers.numbers import number, numbers, whole
from kleash.runlog.importers.pickled import training_arguments
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.trainer_state import TrainerState
from kleash.runlog.importers.vocabulary import Raw, bare
from kleash.runlog.series import SampleText, SavedModel

STATE = "trainer_state.json"
#: The arguments that decide what a KL means.
TOLD = (
    "beta", "kl_coef", "kl_estimator", "use_bias_correction_kl", "loss_type", "num_iterations", "temperature",
    "max_completion_length", "max_new_tokens", "logging_steps", "learning_rate", "sync_ref_model", "use_liger_kernel",
)  # fmt: skip


def is_checkpoint(folder: Path) -> bool:
    return re.fullmatch(r"checkpoint-\d{1,18}", folder.name) is not None


def checkpoints_in(folder: Path) -> tuple[SavedModel, ...]:
    """checkpoint-N below a directory, by N."""
    found = []
    for path in folder.glob("checkpoint-*"):
        match = re.fullmatch(r"checkpoint-(\d{1,18})", path.name)
        if match and path.is_dir():
            found.append(SavedModel(step=int(match[1]), path=path))
    return tuple(sorted(found, key=lambda model: model.step))


def state_in(folder: Path) -> tuple[Path | None, list[str]]:
    """The state with the longest history: that of the last checkpoint, or the one saved at the end; second, remarks.

    Where a lower checkpoint is newer, and no part of the highest one's run, a later run began in the same directory,
    and is the one that counts.
    """
    own, notes = folder / STATE, list[str]()
    saved = [model.path / STATE for model in checkpoints_in(folder) if (model.path / STATE).is_file()]
    if not saved:
        return (own if own.is_file() else None), notes
    chosen, newest = saved[-1], max(saved, key=_changed)
    if _changed(newest) > _changed(chosen) and not _continues(newest, chosen):
        notes.append(f"{chosen.parent.name} is of an earlier run in this directory; {newest.parent.name} is newer")
        chosen = newest
    return (own if own.is_file() and _changed(own) >= _changed(chosen) else chosen), notes


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _continues(first: Path, later: Path) -> bool:
    """Whether the last row of one state is in another."""
    try:
        *_, last = TrainerState(first).rows()
        return any(row == last for row in TrainerState(later).rows())
    except (RunError, ValueError):
        return False


def read_state(path: Path, keep: frozenset[str] | None = None, run: bool = False) -> tuple[Raw, str | None]:
    """The log of a trainer_state.json and what lies beside it; second, the class of the run's arguments.

    run: samples that are newer than the state belong to it too, for the run is asked for and no checkpoint of it.

    Raises:
        RunError: it is no trainer_state.json.
    """
    table, state, outside = Table(str(path), keep), TrainerState(path), 0
    ended = None
    for row in state.rows():
        step = whole(row.pop("step", None))
        if "train_runtime" in row:
            ended = "finished"
        if step is None:
            outside += 1
        else:
            table.add(step, numbers(row))
    home = path.parent
    output = home.parent if is_checkpoint(home) else home
    last = whole(state.settings.get("global_step"))
    kind, arguments = next(
        (found for found in map(training_arguments, argument_files(home, output)) if found[0]), (None, {})
    )
    config = {name: arguments[name] for name in TOLD if name in arguments}
    steps, files, notes = completion_files(output, None if run else last)
    if state.torn:
        notes.insert(0, f"{path} ends in the middle; its whole rows count")
    if outside:
        notes.append(f"{outside} rows without a step are left out")
    longest = whole(state.settings.get("max_steps"))
    if last and longest and 0 < longest <= last:
        ended = "finished"
    logging_steps = whole(state.settings.get("logging_steps")) if table.steps else None
    raw = Raw(
        path=path,
        table=table,
        container=STATE,
        config=config if longest is None else config | {"max_steps": longest},
        notes=notes,
        smoothing=logging_steps if logging_steps and logging_steps > 0 else None,
        checkpoints=tuple(model for model in checkpoints_in(output) if last is None or model.step <= last),
        sample_steps=steps,
        sample_marks={step: (file.name, *changed(file)) for step, file in files.items()},
        samples=lambda wanted: completions(files, wanted, reward_names(table)),
        ended=ended,
    )
    return raw, kind


def argument_files(home: Path, output: Path) -> list[Path]:
    newest = [model.path for model in checkpoints_in(output)][-1:]
    return [folder / "training_args.bin" for folder in (home, output, *newest)]


def reward_names(table: Table) -> tuple[str, ...]:
    """Of TRL's keys, with a logger's prefix or without."""
    keys = (bare(key) for key in table.keys if not key.endswith("/std"))
    names = (re.fullmatch(r"rewards/(.+?)(?:/mean)?", key) for key in keys)
    return tuple(match[1] for match in names if match)


def completion_files(output: Path, last: int | None) -> tuple[tuple[int, ...], dict[int, Path], list[str]]:
    """Steps, files and remarks. A parquet file without its closing mark is one that is not finished."""
    files, notes = {}, []
    for path in sorted((output / "completions").glob("completions_*.parquet")):
        match = re.fullmatch(r"completions_(\d{1,18})", path.stem)
        if match is None or (last is not None and int(match[1]) > last):
            continue
        if _is_whole(path):
            files[int(match[1])] = path
        else:
            notes.append(f"{path.name} is torn or not finished; its samples are left out")
    return tuple(sorted(files)), files, notes


def changed(path: Path) -> tuple[int, int]:
    """A file's size and time: as long as they are the same, so is what it holds."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0  # gone since; whoever reads it says so
    return found.st_size, found.st_mtime_ns


def _is_whole(path: Path) -> bool:
    try:
        with open_log(path) as file:
            start = file.read(4)
            file.seek(max(0, path.stat().st_size - 4))
            return start == file.read(4) == b"PAR1"
    except (RunError, OSError):
        return False


def completions(files: dict[int, Path], wanted: Iterable[int] | None, rewards: tuple[str, ...]) -> list[SampleText]:
    """Samples of the steps. score: the sum of the rewards (their weights are not in the file).

    Raises:
        RunError: pyarrow is not installed, or a file is damaged.
    """
    steps = sorted(files) if wanted is None else [step for step in sorted(set(wanted)) if step in files]
    found: list[SampleText] = []
    for step in steps:
        for row in parquet_rows(files[step]):
            if row.get("completion") is None:  # nothing was written down, which is no empty answer
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


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise RunError(f"reading the samples in {path} needs pyarrow: pip install pyarrow") from None
    try:
        return parquet.ParquetFile(path).read().to_pylist()
    except Exception as error:  # pyarrow's own errors, some of them bare OSError or ValueError
        raise RunError(f"cannot read {path}: {str(error).splitlines()[0] if str(error) else 'damaged'}") from error


def as_text(value: Any) -> str:
    """A text, or a conversation as its contents: the last role's words, one message a line."""
    if isinstance(value, list):
        return "\n".join(as_text(message) for message in value)
    if isinstance(value, dict):
        content = value.get("content")
        if isinstance(content, list):
            return "".join(as_text(part.get("text")) if isinstance(part, dict) else as_text(part) for part in content)
        return as_text(content)
    return "" if value is None else str(value)
