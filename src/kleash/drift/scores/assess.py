"""From both models' scores, item by item, to what is said of each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from kleash.drift.records import Interval, Outcome, Score
from kleash.drift.scores.paired import change
from kleash.drift.scores.task import Result
from kleash.drift.thresholds import WORTH_HAVING
from kleash.errors import RunError, UsageError


@dataclass(frozen=True, slots=True)
class _Judged:
    """The items that both models have a score of."""

    result: Result
    base: list[float]
    tuned: list[float]

    @property
    def range(self) -> float:
        """What scores range over: 1 for those from 0 to 1, else from the least to the largest seen."""
        seen = [*self.base, *self.tuned]
        return 1.0 if min(seen) >= 0 and max(seen) <= 1 else max(seen) - min(seen)

    @property
    def least(self) -> float:
        """The lowest score: 0, or the lowest seen where some are below it."""
        return min(0.0, *self.base, *self.tuned)


def check_names(names: Sequence[str]) -> None:
    """Raises UsageError: two tasks have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two tasks are called {twice}; give one of them another name")


def assess(results: Sequence[Result], *, seed: int = 0) -> list[Score]:
    """Each task's change with its interval and its outcome.

    What the model was trained for is one question, asked beforehand: its interval is 95 %. The intervals of all other
    tasks hold together in 95 % of audits (Bonferroni), so that a model that lost nothing is not told so by chance.

    Raises:
        UsageError: two tasks have one name. RunError: no item of a task was judged for both models.
    """
    check_names([result.name for result in results])
    judged = [_both(result) for result in results]
    others = max(1, sum(one.result.role != "task" for one in judged))
    return [_score(one, 0.05 if one.result.role == "task" else 0.05 / others, seed) for one in judged]


def outcome(found: Interval, worth: float) -> Outcome:
    """What the interval of a change says. worth: a change below it is not worth having."""
    if found.low is None or found.high is None:
        return "unclear"
    if found.low > 0:
        return "gained"
    if found.high < 0:
        return "LOST"
    return "no gain" if found.high < worth else "unclear"


def _both(result: Result) -> _Judged:
    pairs = [(b, t) for b, t in zip(result.base, result.tuned, strict=True) if b is not None and t is not None]
    if not pairs:
        raise RunError(f"no item of {result.name} ({result.source}) was judged for both models")
    return _Judged(result, [b for b, _ in pairs], [t for _, t in pairs])


def _score(one: _Judged, alpha: float, seed: int) -> Score:
    found = change(one.base, one.tuned, alpha=alpha, seed=seed)
    worst = change(one.base, [one.least] * len(one.base), alpha=alpha, seed=seed)
    worth = WORTH_HAVING * one.range
    return Score(
        name=one.result.name,
        role=one.result.role,
        source=one.result.source,
        base=fmean(one.base),
        tuned=fmean(one.tuned),
        change=found,
        outcome=outcome(found, worth),
        family=one.result.family,
        could_lose=outcome(worst, worth) == "LOST",
    )
