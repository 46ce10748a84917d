"""Which checkpoint is `best`: the highest score among those whose KL kept to the leash: the target and the budget.

With held-out prompts the score is theirs, at the checkpoint itself; without, the smoothed training score before it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kleash.records import Reading, Step, Target
from kleash.runlog.schema import Evaluation
from kleash.training.budget import exceeded

#: Smoothing of the score: an exponential mean over about so many steps.
SMOOTHING_STEPS = 10
#: A checkpoint may exceed the target by this much and still be best.
SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far, and the score it was chosen for; path None before there is one."""

    score: float | None = None
    path: str | None = None

    def consider(self, run_dir: Path, checkpoint: Path, score: float | None, notice: Callable[[str], None]) -> "Best":
        """The better of this and a new checkpoint of this merit; run_dir/best is made to point at it, atomically.

        Where no link can be made (some network drives) that is noticed, and is no reason to end a run.
        """
        if score is None or (self.score is not None and score <= self.score):
            return self
        link, draft = run_dir / "best", run_dir / ".best.part"
        try:
            draft.unlink(missing_ok=True)
            draft.symlink_to(checkpoint.relative_to(run_dir), target_is_directory=True)
            os.replace(draft, link)
        except OSError as error:
            notice(f"{checkpoint} is the best so far, but {link} cannot be made to point at it: {error.strerror}")
        return Best(score, checkpoint.name)


def smoothed(history: Sequence[Step]) -> list[float | None]:
    """Exponential mean of the scores up to each step, bias-corrected; None before the first."""
    means: list[float | None] = []
    mean = None
    for step in history:
        if step.score is not None:
            mean = step.score if mean is None else mean + (step.score - mean) / SMOOTHING_STEPS
        means.append(mean)
    return means


def merit(
    history: Sequence[Step], evaluations: Sequence[Evaluation], budget: Target | None, *, held_out: bool
) -> float | None:
    """The score by which the checkpoint at the end of `history` is chosen; None where it cannot be best.

    With held-out prompts a checkpoint needs an evaluation of its own, and its KL must keep to the leash on both sets
    of prompts; of greedy text, whose KL is no mean over the policy's samples, on the training prompts alone. `budget`
    is the one in force now, whatever it was when the checkpoint was made.
    """
    if not history or not within_leash(history[-1], budget):
        return None
    if not held_out:
        return smoothed(history)[-1]
    own = next((e for e in reversed(evaluations) if e.step == history[-1].step + 1), None)
    return own.score if own is not None and (own.greedy or within_leash(own, budget)) else None


def comparable(done: Evaluation, prompts: str | None, drawn: str) -> bool:
    """Whether an evaluation was of these held-out prompts (their digest), drawn in this way: else no score compares."""
    return done.how == drawn and done.prompts == prompts


def within_leash(measured: Step | Evaluation, budget: Target | None) -> bool:
    """Whether kl_ref keeps to SLACK × the target and to the budget; True without either or a measurement."""
    if exceeded(budget, measured):
        return False
    if measured.target is None:
        return True
    target = Target.parse(measured.target)
    reading: Reading | None = measured.kl_ref_token if target.unit == "nats/token" else measured.kl_ref
    return reading is None or reading.value <= SLACK * target.value
