"""Beta moved while a guest's trainer runs, and proof that the move is felt."""

import logging
from dataclasses import dataclass, field
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.records import Controller, ControllerState, Reading, Target

log = logging.getLogger("kleash")

#: Trainers whose loss or reward multiplies the KL by `self.beta` each time; in a pair's loss beta is the model itself.
STEERABLE = ("GRPOTrainer", "RLOOTrainer")


class Beta(float):
    """A number that knows whether it was multiplied with anything: how it is seen that a trainer uses it."""

    used: int

    def __new__(cls, value: float) -> "Beta":
        made = super().__new__(cls, value)
        made.used = 0
        return made

    def __mul__(self, other: Any) -> Any:
        self.used += 1
        return float(self) * other

    __rmul__ = __mul__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Where a tensor stands on the left, torch asks here."""
        return function(*map(_plain, args), **{key: _plain(value) for key, value in (kwargs or {}).items()})


def _plain(value: Any) -> Any:
    if not isinstance(value, Beta):
        return value
    value.used += 1
    return float(value)


@dataclass(slots=True)
class Steering:
    """Holds a target by the trainer's beta. state: all that it remembers."""

    trainer: Any
    law: Controller
    target: Target
    state: ControllerState
    _given: list[Beta] = field(default_factory=list)

    @classmethod
    def begin(cls, trainer: Any, law: Controller, target: Target) -> "Steering":
        """From the trainer's own first beta.

        Raises:
            UsageError: this trainer's beta cannot be moved, or moving it would do nothing.
        """
        check(trainer)
        made = cls(trainer, law, target, law.init(float(trainer.beta)))
        made.put()
        return made

    def put(self) -> None:
        """Gives the trainer the beta of the state."""
        beta = Beta(self.state.beta)
        self._given = [beta]
        self.trainer.beta = beta

    def move(self, reading: Reading) -> None:
        """One reading further.

        Raises:
            RunError: the last beta was multiplied with nothing: the trainer does not use it.
        """
        if self._given and self._given[-1].used == 0:
            raise RunError(
                f"beta was set to {self._given[-1]:.4g}, and {type(self.trainer).__name__} has not used it since: it "
                "keeps a beta of its own (a fused loss?), so no target can be held; leave target out"
            )
        before = self.state.beta
        self.state = self.law.update(self.state, reading, self.target)
        self.put()
        log.info("kleash: KL %.4g %s, beta %.4g -> %.4g", reading.value, reading.unit, before, self.state.beta)


def check(trainer: Any) -> None:
    """Raises UsageError where a target cannot be held, with the reason."""
    name = type(trainer).__name__
    if not any(kind.__name__ in STEERABLE for kind in type(trainer).__mro__):
        raise UsageError(
            f"target: {name} has no beta that could hold one (in a pair's loss beta is part of what is learnt, not a "
            f"price beside it); leave target out to measure alone, or use {' or '.join(STEERABLE)}"
        )
    if float(getattr(trainer, "beta", 0.0)) == 0:
        raise UsageError(
            f"target: {name} was built with beta = 0, so it has no reference and charges nothing, whatever beta is; "
            "start from a small one, as beta = 0.05"
        )
    fused = [held for held in ("liger_grpo_loss", "liger_loss") if getattr(trainer, held, None) is not None]
    if fused or getattr(trainer, "use_liger_loss", False):
        raise UsageError(
            f"target: {name} computes its loss in Liger's kernel, which keeps the beta it was made with; switch "
            "use_liger_kernel off, or leave target out"
        )


def check_pace(trainer: Any, every: int) -> None:
    """Raises UsageError where beta would move more often than the trainer charges the KL: RLOO does when it samples."""
    if not any(kind.__name__ == "RLOOTrainer" for kind in type(trainer).__mro__):
        return
    args = trainer.args
    updates = -(-args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps)
    if every < updates:
        raise UsageError(
            f"every = {every}: {type(trainer).__name__} charges the KL when it samples, once in {updates} updates with "
            f"these arguments, and would not feel a beta that is moved in between; use every = {updates} or more"
        )
