"""A run directory of `kleash sft`, `dpo` or `reward` as an object. Reading it needs no torch."""

from dataclasses import dataclass
from pathlib import Path

from kleash.report.offline import write_offline_report
from kleash.runlog.jsonl import read
from kleash.runlog.offline import OfflineEvaluation, OfflineStep
from kleash.runlog.schema import Event, current, offline_evaluations, offline_steps
from kleash.training import shelf
from kleash.training.run import Saved, best_of, ended


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """A finished, stopped or running run."""

    path: Path

    @property
    def events(self) -> list[Event]:
        """All that holds of the log: what a resume made void is left out."""
        return current(read(self.path / "events.jsonl"))

    @property
    def steps(self) -> list[OfflineStep]:
        """One record per update, in order."""
        return offline_steps(self.events)

    @property
    def evaluations(self) -> list[OfflineEvaluation]:
        return offline_evaluations(self.events)

    @property
    def ended(self) -> str | None:
        """Why it ended: "finished", "budget", "interrupted", an error's words; None: it runs yet, or was killed."""
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
        """The checkpoint that the held-out rows like best; within the KL budget, where there is one.

        Raises:
            RunError: there is none, or the file system takes no links.
        """
        return best_of(self.path, "nothing was held out to choose one by, or no link to it could be made")

    @property
    def model(self) -> Saved:
        """What came out: the best checkpoint, or without one the last.

        Raises:
            RunError: there is no checkpoint yet.
        """
        return self.best if (self.path / "best").exists() or not self.checkpoints else self.checkpoints[-1]

    def report(self) -> Path:
        """Writes report.html and says where it is."""
        return write_offline_report(self.path)
