"""Work by the plan in force; where memory runs out, less at once and the same work again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kleash.errors import RunError
from kleash.models.memory import is_out_of_memory, release
from kleash.models.plan import Plan, less_sampled, lowered
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.passes import Found


@dataclass(frozen=True, slots=True)
class Careful:
    """The `ByPlan` of a run: halves its plan where memory runs out, says so, and keeps to it from there on.

    What is done must leave nothing behind when it fails, so that doing it again is all there is to it.
    """

    job: Job
    state: Progressing
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

    def _run(self, work: Callable[[Plan], Found], less: Callable[[Plan], Plan | None]) -> Found:
        while True:
            try:
                return work(self.state.plan)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                said = str(error).strip().splitlines()[0]
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
        self.state.plan = plan
        text = f"memory ran out ({said}): from here on {plan} instead of {before}; nothing of the step is lost"
        self.sinks.notice("out_of_memory", text, self.state.step)

    def _advice(self) -> str:
        model = self.job.config.model
        ways = ["train.max_new_tokens, algorithm.group_size or the length of the prompts lower"]
        ways += [] if model.gradient_checkpointing else ["model.gradient_checkpointing = true"]
        ways += [] if self.job.loaded.adapter else ["model.adapter = { rank = 16 }"]
        ways += [] if model.dtype == "bfloat16" else ['model.dtype = "bfloat16"']
        return f"set {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"
