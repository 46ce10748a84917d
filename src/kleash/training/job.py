"""The records of a run in progress: its fixed parts, what moves from step to step, and where it tells of itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kleash.algorithms import StepPrice
from kleash.beta.entropy import EntropyState
from kleash.models.frozen import Reference
from kleash.models.load import Loaded, load
from kleash.models.plan import Plan, Size, Work
from kleash.models.policy import Policy
from kleash.models.prompts import encode
from kleash.models.sampling import Sampling
from kleash.models.spec import ModelSpec
from kleash.monitor import Watched
from kleash.records import Controller, ControllerState, Step
from kleash.rewards.chain import ShapeMemory
from kleash.rewards.load import Rewarder
from kleash.runlog.boards import Boards
from kleash.runlog.jsonl import Writer
from kleash.runlog.schema import Evaluation, Notice
from kleash.training.best import Best
from kleash.training.config import Config
from kleash.training.data import Prompts
from kleash.training.moving import Moves
from kleash.training.passes import Update
from kleash.training.recovery import Recovery
from kleash.training.tailwatch import TailWatch
from kleash.training.texts import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run's parts, assembled and checked; nothing in it changes but weights and optimizer state.

    `plan` is the one to begin with, made for `work`, a step at its largest, and a policy of this `size`.
    """

    config: Config
    run_dir: Path
    loaded: Loaded
    reference: Reference
    rewarders: Sequence[Rewarder]
    prompts: Prompts
    sampling: Sampling
    update: Update
    controller: Controller
    optimizer: torch.optim.Optimizer
    learning_rate: float
    size: Size
    work: Work
    plan: Plan
    held_out: Prompts | None = None
    rollout: Callable[..., Any] | None = None
    classes: torch.Tensor | None = None
    texts: Texts | None = None

    @property
    def model(self) -> ModelSpec:
        return self.config.model

    @property
    def shorter(self) -> str:
        """Which settings make a step smaller, for advice where memory runs out."""
        return "train.max_new_tokens, algorithm.group_size or the length of the prompts"

    @property
    def updates(self) -> int:
        """Of one step, none of them ended early."""
        return self.update.algorithm.epochs * self.update.algorithm.minibatches

    def of_reference(self, plan: Plan) -> Plan:
        """The update's own, so that step 0 is exactly 0; but where training cannot share prompts, the reference may.

        Two paths differ by rounding: nothing to a leash in fp32, and too much in bf16.
        """
        alone = plan.path == "plain" and plan.rows is None
        shares = alone and self.loaded.paths == ("plain",) and self.loaded.policy.compute is None
        return replace(plan, path=self.loaded.reading[0]) if shares else plan

    def reload(self, directory: Path) -> Policy:
        """The policy of a checkpoint."""
        return load(replace(self.model, policy=str(directory))).policy

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def bad(self) -> Path:
        """Where batches are kept whose update was not finite."""
        return self.run_dir / "bad"

    def encode(self, prompts: list[Any]) -> list[list[int]]:
        """Token ids of prompts, as this model's tokenizer and template have them; see `models.prompts.encode`."""
        return encoded(prompts, self.config, self.loaded)


def encoded(prompts: list[Any], config: Config, loaded: Loaded) -> list[list[int]]:
    return encode(
        prompts,
        loaded.tokenizer,
        context=loaded.context,
        max_new_tokens=config.train.max_new_tokens,
        chat=config.data.asked,
        rows=loaded.policy.rows,
    )


@dataclass(slots=True)
class Progressing:
    """What moves from step to step: the next step's number, beta's state, the records so far, the best checkpoint.

    `plan`: how a step goes through the model. `unmoved`: no update of `step` has begun, so its weights are whole.
    `saved`: the step of the last checkpoint tried. `step_price`: of a step-size penalty; None before its first step,
    and without one; so is `entropy`, of an entropy bonus. `redrawn`: prompts drawn so far beyond one batch a step.
    `watched`: what the monitor has read; it comes from the log, so no checkpoint holds it.
    """

    step: int
    controller: ControllerState
    plan: Plan
    unmoved: bool = True
    saved: int = 0
    history: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    best: Best = field(default_factory=Best)
    shaping: ShapeMemory = field(default_factory=ShapeMemory)
    recovery: Recovery = field(default_factory=Recovery)
    tail: TailWatch = field(default_factory=TailWatch)
    step_price: StepPrice | None = None
    entropy: EntropyState | None = None
    redrawn: int = 0
    moves: Moves = field(default_factory=Moves)
    watched: Watched | None = None


class Sinks(NamedTuple):
    """Where a run tells of itself. show: a step's record, for the terminal (`Progress`, `OfflineProgress`)."""

    events: Writer | Boards
    samples: Writer
    show: Callable[..., None]
    say: Callable[[str], None]

    def notice(self, what: str, text: str, step: int | None = None) -> None:
        """Said to the user and kept in the log."""
        self.say(text)
        self.events.write(Notice(what=what, text=text, step=step))
