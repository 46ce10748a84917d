"""Which model a run's name means: its checkpoints, kleash's or TRL's, and the one taken where a run is named."""

import re
from dataclasses import dataclass
from pathlib import Path

from kleash.errors import RunError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One of a run's checkpoints: the name to open it by, and its step; None for a model that is no checkpoint."""

    name: str
    step: int | None


def checkpoints(name: str, *, inside: bool = False) -> list[Checkpoint]:
    """All checkpoints of a run directory of kleash's or of TRL's, in their order; of anything else, that itself.

    A directory that is a model too (TRL saves the last one there) is that model, or with `inside` its checkpoints.
    """
    path = Path(name).expanduser()
    for pattern in ("checkpoints/step-*", "checkpoint-*"):
        found = [(int(match[1]), p) for p in path.glob(pattern) if (match := re.search(r"-(\d+)$", p.name))]
        if found and (inside or not _is_model(path)):
            return [Checkpoint(name=str(p), step=step) for step, p in sorted(found)]
    return [Checkpoint(name=name, step=step_of(name))]


def model_of(name: str) -> str:
    """The model that a name means: of a run its best checkpoint, without one its newest; anything else as it is.

    Raises:
        RunError: a run without a checkpoint.
    """
    several, run = checkpoints(name), Path(name).expanduser()
    if several != [Checkpoint(name=name, step=step_of(name))]:
        return str(run / "best") if (run / "best").is_dir() else several[-1].name
    if (run / "events.jsonl").is_file() and not _is_model(run):
        raise RunError(f"the run {name} has no checkpoint yet; there is nothing to take from it")
    return name


def step_of(name: str) -> int | None:
    """The step in a checkpoint's name, as written: runs/x@step-200, …/step-000200, …/checkpoint-200."""
    match = re.search(r"(?:@step-|/step-0*|/checkpoint-)(\d+)/?$", name)
    return None if match is None else int(match[1])


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or (path / "adapter_config.json").is_file()
