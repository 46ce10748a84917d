"""The reward's upper tail under the reference, tested once per run on the samples of its first steps, for nothing.

While kl_ref is at most NEAR, the policy's samples stand for the reference's. Tested are the shaped totals, for they are
what is trained on: a shape that bounds them ends the danger, and the warning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from kleash.records import Step
from kleash.rewards.tail import tail_test

#: Nats per sequence up to which a step's samples count as the reference's, and how many scores make a sample.
NEAR, ENOUGH = 0.1, 256


@dataclass(frozen=True, slots=True)
class TailWatch:
    """The scores so far; `over` once they were tested, or the policy has left the reference."""

    scores: tuple[float, ...] = ()
    over: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "TailWatch":
        return cls(tuple(plain["scores"]), plain["over"])


class Watched(NamedTuple):
    """figures: the test's, empty where none was made at this step. warning: a sentence if the tail is heavy."""

    watch: TailWatch
    figures: dict[str, float]
    warning: str | None = None


def watch_tail(watch: TailWatch, record: Step, scores: Sequence[float | None]) -> Watched:
    """Takes a step's scores in, and tests once there are enough of them."""
    if watch.over:
        return Watched(watch, {})
    if record.kl_ref is None or record.kl_ref.value > NEAR:
        return Watched(TailWatch(over=True), {})
    known = (*watch.scores, *(s for s in scores if s is not None))
    if len(known) < ENOUGH:
        return Watched(TailWatch(known), {})
    tail = tail_test(known)
    if tail is None:
        return Watched(TailWatch(over=True), {})
    figures: dict[str, Any] = asdict(tail)
    return Watched(TailWatch(over=True), figures, _warning(figures) if tail.heavy else None)


def _warning(figures: dict[str, float]) -> str:
    return (
        "the reward's upper tail is heavier than any exponential's on the reference's own samples (Hill index "
        "{index:.2f}, 95 % {low:.2f} to {high:.2f}, p {p:.1g}, {n} samples): then no KL target bounds what a little "
        "more weight on the rarest samples can gain. Bound it, as in rewards.shape = [{{ kind = 'par' }}]; "
        "docs/rewards.md, Heavy tails"
    ).format(**figures)
