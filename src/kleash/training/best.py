"""Which checkpoint is `best`: the highest smoothed score among those whose KL kept to the leash."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kleash.records import Reading, Step, Target

#: Smoothing of the score: an exponential mean over about so many steps.
SMOOTHING_STEPS = 10
#: A checkpoint may exceed the target by this much and still be best.
SLACK = 1.25


@dataclass(frozen=True, slots=True)
class Best:
    """The best checkpoint so far; path None before there is one. Figures are those of the steps before it."""

    score: float | None = None
    path: str | None = None

    def consider(
        self, run_dir: Path, checkpoint: Path, history: Sequence[Step], notice: Callable[[str], None]
    ) -> "Best":
        """The better of this and a new checkpoint; run_dir/best is made to point at it, atomically.

        Where no link can be made (some network drives) that is noticed, and is no reason to end a run.
        """
        score = smoothed_score(history)
        if score is None or not within_leash(history[-1]) or (self.score is not None and score <= self.score):
            return self
        link, draft = run_dir / "best", run_dir / ".best.part"
        try:
            draft.unlink(missing_ok=True)
            draft.symlink_to(checkpoint.relative_to(run_dir), target_is_directory=True)
            os.replace(draft, link)
        except OSError as error:
            notice(f"{checkpoint} is the best so far, but {link} cannot be made to point at it: {error.strerror}")
        return Best(score, checkpoint.name)


def smoothed_score(history: Sequence[Step]) -> float | None:
    """Exponential mean of the scores, bias-corrected; None without any."""
    mean = weight = 0.0
    for step in history:
        if step.score is not None:
            mean += (step.score - mean) / SMOOTHING_STEPS if weight else step.score - mean
            weight = 1.0
    return mean if weight else None


def within_leash(step: Step) -> bool:
    """Whether kl_ref keeps to SLACK × the target; True without a target or a measurement."""
    if step.target is None:
        return True
    target = Target.parse(step.target)
    reading: Reading | None = step.kl_ref_token if target.unit == "nats/token" else step.kl_ref
    return reading is None or reading.value <= SLACK * target.value
