"""What shapes are made of: the samples they see, the moments they remember, and the functions they apply.

Everything here is pure; a sample without a score (None) has none afterwards.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Numbers = list[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of all scores so far."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def joined(self, values: Sequence[float]) -> "Moments":
        """With these values as well, by Chan's pairwise update: no difference of large sums.

        Source: Chan, Golub & LeVeque 1983, "Algorithms for Computing the Sample Variance", Am. Statistician 37.
        Proved by: tests/rewards/test_shapes.py::test_moments_equal_those_of_all_scores_together
        """
        if not values:
            return self
        k = len(values)
        mean = math.fsum(values) / k
        squares = math.fsum((v - mean) ** 2 for v in values)
        n, apart = self.n + k, mean - self.mean
        return Moments(
            n=n,
            mean=self.mean + apart * k / n,
            squares=self.squares + squares + apart * apart * self.n * k / n,
        )

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.n) if self.n else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A step's samples as a shape sees them; one entry a sample.

    lengths: counted tokens. group: its prompt's number in the step. reference: this reward's scores of completions
    that the reference gave to the same prompt; empty where no shape asks for them.
    """

    completions: Sequence[str]
    lengths: Sequence[int]
    group: Sequence[int]
    reference: Sequence[Sequence[float | None]] = ()


def sigmoid(x: float) -> float:
    """1 / (1 + exp(−x)), without overflow."""
    e = math.exp(-abs(x))
    return (1.0 if x >= 0 else e) / (1.0 + e)


def soft_overlong(length: int, limit: int, cache: int) -> float:
    """DAPO's length punishment of a completion of so many tokens.

    0 up to limit − cache, −1 above limit, ((limit − cache) − length) / cache between.

    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, eq. 13.
    Proved by: tests/rewards/test_shapes.py::test_soft_overlong_is_the_papers_three_cases
    """
    return -min(max(length - (limit - cache), 0) / cache, 1.0)  # the published function, not a guard


def standard(score: float, moments: Moments) -> float:
    """(score − mean) / std; 0 where there is no spread."""
    return (score - moments.mean) / moments.std if moments.std > 0 else 0.0


def each(scores: Numbers, function: Callable[[float], float]) -> Numbers:
    """The function of every score."""
    return [None if s is None else function(s) for s in scores]


def plus(scores: Numbers, added: Sequence[float]) -> Numbers:
    """Every score and its own addend."""
    return [None if s is None else s + a for s, a in zip(scores, added, strict=True)]


def against(
    scores: Numbers, samples: Samples, count: int, function: Callable[[float, Sequence[float]], float]
) -> Numbers:
    """The function of every score and the first `count` reference scores of its prompt; None where one is None."""
    found: Numbers = []
    for s, reference in zip(scores, samples.reference, strict=True):
        known = [r for r in reference[:count] if r is not None]
        found.append(function(s, known) if s is not None and len(known) == count else None)
    return found
