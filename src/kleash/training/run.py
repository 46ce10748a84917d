"""A run directory as an object: its steps, its checkpoints, its report. Reading it needs no torch."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash.errors import RunError, UsageError
from kleash.records import Step
from kleash.report.run import view, write_report
from kleash.report.watch import Case, look
from kleash.runlog.jsonl import read
from kleash.runlog.schema import Event, RunEnd, current, last_of_each_step
from kleash.training import shelf
from kleash.training.audited import audited

if TYPE_CHECKING:
    from kleash.training.audited import Drift

#: What a checkpoint holds beside the model itself.
TRAINING_FILES = (
    "optimizer.safetensors",
    "random.safetensors",
    "critic.safetensors",
    "reference.safetensors",
    "kleash.json",
    shelf.PINS,
)


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint: a directory that `from_pretrained` loads."""

    path: Path

    def save(self, directory: str | Path) -> Path:
        """Copies the model (or its adapter) and tokenizer, without the training state, to a new directory.

        Raises:
            UsageError: the directory exists and is not empty.
        """
        directory = Path(directory)
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty; choose another place for the model")
        shutil.copytree(
            self.path.resolve(), directory, ignore=shutil.ignore_patterns(*TRAINING_FILES), dirs_exist_ok=True
        )
        return directory


@dataclass(frozen=True, slots=True)
class Run:
    """A finished, stopped or running run. A notebook shows its KL, its score, what the monitor says, and samples."""

    path: Path

    @property
    def events(self) -> list[Event]:
        """All that holds of the log: what a resume made void is left out."""
        return current(read(self.path / "events.jsonl"))

    @property
    def steps(self) -> list[Step]:
        """One record per step, in order; the last one of a finished run measures the finished policy."""
        return last_of_each_step(self.events)

    @property
    def ended(self) -> str | None:
        """Why it ended: "finished", "budget", "finding", "interrupted", an error's words; None: not yet, or killed."""
        return ended(self.events)

    @property
    def finished(self) -> bool:
        return self.ended == "finished"

    @property
    def checkpoints(self) -> list[Saved]:
        """Oldest first."""
        return [Saved(path) for path in shelf.ordered(self.path / "checkpoints")]

    @property
    def best(self) -> Saved:
        """The checkpoint with the highest held-out (or else smoothed) score whose KL kept to the leash.

        That is within 1.25 × the target, and within the budget.

        Raises:
            RunError: no checkpoint did, or the file system takes no links.
        """
        why = "none yet kept its KL within 1.25 × the target and the budget, or no link to it could be made"
        return best_of(self.path, why)

    @property
    def model(self) -> Saved:
        """What came out: the best checkpoint, or without one the last.

        Raises:
            RunError: there is no checkpoint yet.
        """
        return model_of(self.path, self.checkpoints)

    def report(self) -> Path:
        """Writes report.html and says where it is."""
        return write_report(self.path)

    def watch(self) -> Case:
        """What the monitor says of it: healthy or not, since when, which checkpoint to keep.

        Raises:
            RunError: the log cannot be read.
        """
        return look(self.path)

    def drift(
        self,
        base: str | Path | None = None,
        *,
        tokens: int | None = None,
        task: str | Path | None = None,
        score: str | Callable[..., Any] | None = None,
        out: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> "Drift":
        """How far the best checkpoint (without one the newest) moved, as `kleash.audit` measures it.

        Args:
            base: what it is compared with; left out, the model that the run began as.
            tokens: of the texts that have nothing to do with the task, at most; left out, all.
            task: prompts of what it was trained for, a file.
            score: what judges an answer to them.
            out: a directory for the page and its company; left out, nothing is written.
            settings: anything else, as `kleash.audit` takes it.

        Raises:
            UsageError: something asked for is wrong; nothing was measured.
            RunError: it could not be measured.
        """
        given: dict[str, Any] = {"tokens": tokens, "task": task, "score": score, "out": out, "settings": settings}
        return audited(self.path, self.events, base, **given)

    def _repr_html_(self) -> str:
        return view(self.path)


def ended(events: Iterable[Event]) -> str | None:
    """Why a run ended, as its last event of an end says it; None without one."""
    return next((event.reason for event in reversed([*events]) if isinstance(event, RunEnd)), None)


def model_of(run_dir: Path, checkpoints: list[Saved]) -> Saved:
    """The best checkpoint, or without one the last.

    Raises:
        RunError: there is none.
    """
    if checkpoints and not (run_dir / "best").exists():
        return checkpoints[-1]
    return best_of(run_dir, "there is no checkpoint yet")


def best_of(run_dir: Path, why: str) -> Saved:
    """The best checkpoint of a run.

    Raises:
        RunError: there is none; `why` says what that may mean.
    """
    if not (run_dir / "best").exists():
        raise RunError(f"{run_dir} has no best checkpoint: {why}; run.model is the last one, run.checkpoints has all")
    return Saved(run_dir / "best")
