"""Work by the plan in force; where memory runs out, less at once and the same work again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from kleash.errors import RunError
from kleash.models.exhausted import is_out_of_memory, release, said_of
from kleash.models.load import Loaded
from kleash.models.plan import Plan, Work, less_sampled, lowered
from kleash.models.spec import ModelSpec
from kleash.training.job import Sinks
from kleash.training.passes import Found


@runtime_checkable
class Planned(Protocol):
    """What it needs of a job."""

    @property
    def loaded(self) -> Loaded: ...
    @property
    def model(self) -> ModelSpec: ...
    @property
    def optimizer(self) -> Any: ...
    @property
    def work(self) -> Work: ...
    @property
    def shorter(self) -> str:
        """Which settings make a step smaller, for advice."""
        ...


@runtime_checkable
class Planning(Protocol):
    """And of a state: the plan in force."""

    step: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Careful:
    """The `ByPlan` of a run: halves its plan where memory runs out, says so, and keeps to it from there on.

    What is done must leave nothing behind when it fails, so that doing it again is all there is to it.
    """

    job: Planned
    state: Planning
    sinks: Sinks

    def __call__(self, work: Callable[[Plan], Found]) -> Found:
        """A forward or a minibatch's gradients.

        Raises:
            RunError: there is no room for one completion at a time.
        """
        return self._run(work, partial(lowered, work=self.job.work, paths=self.job.loaded.paths))

    def sampling(self, work: Callable[[Plan], Found]) -> Found:
        """The same for drawing completions, of fewer prompts at a time.

        Raises:
            RunError: there is no room for one prompt's completions.
        """
        return self._run(work, partial(less_sampled, work=self.job.work))

    def keep_to(self, together: int | None) -> None:
        """`generate` of a user's loop came down to so many episodes at a time; from here on it begins there."""
        if together is None:
            return
        plan = replace(self.state.plan, sampled=max(1, together // self.job.work.group_size))
        if plan != self.state.plan:
            self._change_to(plan, "in generate")

    def _run(self, work: Callable[[Plan], Found], less: Callable[[Plan], Plan | None]) -> Found:
        while True:
            try:
                return work(self.state.plan)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                said = said_of(error)
            # Outside of the handler: the error's traceback holds all that the abandoned try had made.
            self.job.optimizer.zero_grad(set_to_none=True)
            release()
            self._go_on_with(less(self.state.plan), said)

    def _go_on_with(self, plan: Plan | None, said: str) -> None:
        before = self.state.plan
        if plan is None:
            raise RunError(
                f"memory ran out ({said}) with the least at once that there is ({before}); {self._advice()}. What "
                "was saved is whole: go on with --resume"
            )
        self._change_to(plan, f"({said})")

    def _change_to(self, plan: Plan, said: str) -> None:
        before, self.state.plan = self.state.plan, plan
        text = f"memory ran out {said}: from here on {plan} instead of {before}; nothing of the step is lost"
        self.sinks.notice("out_of_memory", text, self.state.step)

    def _advice(self) -> str:
        model = self.job.model
        ways = [f"{self.job.shorter} lower"]
        ways += [] if model.gradient_checkpointing else ["model.gradient_checkpointing = true"]
        ways += [] if self.job.loaded.adapter else ["model.adapter = { rank = 16 }"]
        ways += [] if model.dtype == "bfloat16" else ['model.dtype = "bfloat16"']
        return f"set {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"
