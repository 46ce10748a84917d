"""A run directory of `kleash sft`, `dpo` or `reward` as an object. Reading it needs no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash.errors import UsageError
from kleash.report.offline import view, write_offline_report
from kleash.report.watch import Case, look
from kleash.runlog.jsonl import read
from kleash.runlog.offline import OfflineEvaluation, OfflineStep
from kleash.runlog.schema import Event, RunStart, current, offline_evaluations, offline_steps
from kleash.training import shelf
from kleash.training.audited import audited
from kleash.training.run import Run, Saved, best_of, ended, model_of

if TYPE_CHECKING:
    from kleash.training.audited import Drift


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
        return model_of(self.path, self.checkpoints)

    def report(self) -> Path:
        """Writes report.html and says where it is."""
        return write_offline_report(self.path)

    def watch(self) -> Case:
        """What the monitor says of it, as `Run.watch`."""
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
        """How far it moved from the model that it began as, as `Run.drift`."""
        given: dict[str, Any] = {"tokens": tokens, "task": task, "score": score, "out": out, "settings": settings}
        return audited(self.path, self.events, base, **given)

    def _repr_html_(self) -> str:
        return view(self.path)


def load_run(path: str | Path) -> Run | OfflineRun:
    """The run in a directory, of whichever verb: `Run` of `train`, `OfflineRun` of `sft`, `dpo` and `reward`.

    Raises:
        UsageError: there is no run of kleash's there.
        RunError: its log cannot be read.
    """
    path = Path(path)
    run_dir = path.parent if path.name == "events.jsonl" else path
    if not (run_dir / "events.jsonl").is_file():
        raise UsageError(
            f"{path} is no run of kleash: it has no events.jsonl. `kleash.watch` reads the logs of other trainers"
        )
    start = next((event for event in read(run_dir / "events.jsonl") if isinstance(event, RunStart)), None)
    return Run(run_dir) if start is None or start.verb == "train" else OfflineRun(run_dir)
