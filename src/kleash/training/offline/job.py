"""The records of a run on rows that are there already, and what a verb brings: its objective."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from kleash.models.load import Loaded
from kleash.models.plan import Plan, Work
from kleash.models.spec import ModelSpec
from kleash.runlog.offline import OfflineEvaluation, OfflineStep
from kleash.runlog.schema import Event
from kleash.tensors import Rollout
from kleash.training.best import Best
from kleash.training.checkpoint import Reload, Trained
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.passes import ByPlan
from kleash.training.recovery import Recovery

#: Tensors by name, by the part that remembers them: what a checkpoint holds beside the weights.
Tensors = dict[str, dict[str, torch.Tensor]]


class Taught(NamedTuple):
    """A step's rows, their gradients being in `.grad`. own: the objective's state after it. figures: of its record.

    said: what else belongs into the log; notices are told to the user too.
    """

    rollout: Rollout
    loss: float
    own: Any
    figures: dict[str, Any]
    said: tuple[Event, ...] = ()


class Judged(NamedTuple):
    """What an evaluation found. merit: the higher, the better the checkpoint; None: it cannot be the best.

    over: why the run ends here; None: it goes on. said: as of `Taught`; samples go into samples.jsonl.
    """

    event: OfflineEvaluation
    own: Any
    merit: float | None
    over: str | None = None
    said: tuple[Event, ...] = ()


@runtime_checkable
class Objective(Protocol):
    """What is learned from rows that are there already. `own` is all that it remembers from step to step."""

    @property
    def record(self) -> Callable[..., OfflineStep]:
        """The record of a step: called with what the loop measured and the figures of `learn`."""
        ...

    def begin(self) -> Any:
        """What it remembers before the first step."""
        ...

    def learn(self, step: int, own: Any, by_plan: ByPlan) -> Taught:
        """Adds the gradients of the step's rows to `.grad`. Changes nothing else."""
        ...

    def judge(self, step: int, own: Any, by_plan: ByPlan) -> Judged | None:
        """The weights after `step` updates; None where there is nothing to judge by."""
        ...

    def keep(self, own: Any) -> tuple[dict[str, Any], Tensors]:
        """`own`, and all else that it remembers, as plain values and tensors."""
        ...

    def recall(self, plain: Mapping[str, Any], tensors: Tensors, step: int) -> Any:
        """The same put back."""
        ...

    def line(self, record: Any) -> list[str]:
        """What the terminal shows of a step, besides its number and time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineJob:
    """A run's parts, assembled and checked; nothing in it changes but weights and optimizer state.

    loaded: the model, its tokenizer, its paths. trained: what moves, `loaded.policy` where it is that. fingerprints:
    of all that must be the same when the run goes on. described: lines for people. reload: `trained` from a checkpoint;
    first: as it was before the first update.
    """

    verb: str
    config: Any
    model: ModelSpec
    train: OfflineTrain
    run_dir: Path
    loaded: Loaded
    trained: Trained
    reload: Reload
    first: Callable[[], Trained]
    objective: Objective
    optimizer: torch.optim.Optimizer
    learning_rate: float
    steps: int
    work: Work
    plan: Plan
    fingerprints: dict[str, Any]
    described: tuple[str, ...] = ()

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def shorter(self) -> str:
        """Which settings make a step smaller, for advice where memory runs out."""
        return "the length of the rows"

    @property
    def bad(self) -> Path:
        """Where rows are kept whose update was not finite."""
        return self.run_dir / "bad"


@dataclass(slots=True)
class OfflineState:
    """What moves from step to step. `own` is the objective's; the rest is as in an online run's `Progressing`."""

    step: int
    own: Any
    plan: Plan
    unmoved: bool = True
    saved: int = 0
    history: list[OfflineStep] = field(default_factory=list)
    evaluations: dict[int, float | None] = field(default_factory=dict)
    best: Best = field(default_factory=Best)
    recovery: Recovery = field(default_factory=Recovery)
