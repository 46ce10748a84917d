"""Which log lies at a path, and its way into a TrainLog."""

from collections.abc import Mapping
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.importers import kleash, trl, trl_files
from kleash.runlog.importers.understand import understand
from kleash.runlog.series import TrainLog


def read_log(path: str | Path, *, columns: Mapping[str, str] | None = None) -> TrainLog:
    """The log at a path: a run's directory, a checkpoint, or the log's file.

    Args:
        columns: what keys mean, for logs of no known trainer.

    Raises:
        RunError: there is no log, or none that can be read.
        UsageError: `columns` names what does not exist.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise RunError(f"there is no {path}")
    if path.is_dir():
        return _directory(path, columns)
    return _file(path, columns)


def _directory(path: Path, columns: Mapping[str, str] | None) -> TrainLog:
    if (path / kleash.EVENTS).is_file():
        return kleash.read_run(path)
    state = trl_files.state_in(path)
    if state is not None:
        return _trainer_state(state)
    raise RunError(f"{path} has no training log that kleash knows")


def _file(path: Path, columns: Mapping[str, str] | None) -> TrainLog:
    if path.name == kleash.EVENTS:
        return kleash.read_run(path.parent)
    if path.name == trl_files.STATE:
        return _trainer_state(path)
    raise RunError(f"{path} is no training log that kleash knows")


def _trainer_state(path: Path) -> TrainLog:
    raw, kind = trl_files.read_state(path)
    return understand(raw, trl.by_arguments(kind))
