"""Is the reward's upper tail so heavy that no KL leash can help?

Kwa et al. 2024 (arXiv 2407.14503): where the reward falls off slower than every exponential under the reference
(E exp(t r) = ∞ for all t > 0), there are policies within any KL > 0 of it whose expected reward is as high as one
likes, by a little more weight on its rarest samples. A finite sample can only show that its tail is heavier than an
exponential one of the same size would be: that is what is tested, and what a warning says.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

#: Scores above the median below which nothing is said, and the share of them that is the tail.
FEWEST, TAIL_SHARE = 50, 0.2
#: Draws from the exponential for the p-value, and the p-value at which the tail is called heavy.
DRAWS, ALARM = 1999, 0.005


@dataclass(frozen=True, slots=True)
class Tail:
    """index: Hill's, of the excess over the median, with a 95 % interval. p: of one as large under an exponential."""

    index: float
    low: float
    high: float
    p: float
    n: int

    @property
    def heavy(self) -> bool:
        return self.p <= ALARM


def hill(values: Sequence[float], k: int) -> float:
    """(1/k) Σ_{i ≤ k} log(x_(i) / x_(k+1)), x_(1) ≥ x_(2) ≥ … the values, of which the k + 1 largest are above 0.

    It estimates ξ where P(X > x) falls like x^(−1/ξ); k·hill/ξ of a Pareto sample is Gamma(k, 1).

    Source: Hill 1975, "A Simple General Approach to Inference About the Tail of a Distribution", Ann. Statist. 3.
    Proved by: tests/rewards/test_tail.py::test_hill_on_pareto_samples
    """
    largest = sorted(values, reverse=True)[: k + 1]
    return math.fsum(math.log(x / largest[k]) for x in largest[:k]) / k


def tail_test(scores: Sequence[float]) -> Tail | None:
    """The upper tail of a sample of scores; None if there are too few above their median.

    Scale and origin of the scores do not matter. The interval is Hill's asymptotic one, ξ (1 ± 1.96/√k), and takes the
    scores as independent: several of one prompt make it narrower than it is.

    Proved by: tests/rewards/test_tail.py::test_false_alarms_and_what_is_found
    """
    middle = median(scores) if scores else 0.0
    above = [s - middle for s in scores if s > middle]
    if len(above) < FEWEST:
        return None
    k = int(TAIL_SHARE * len(above))
    index = hill(above, k)
    null = _exponential(len(above), k)
    p = (1 + sum(other >= index for other in null)) / (1 + len(null))
    wide = 1.96 * index / math.sqrt(k)
    return Tail(index, index - wide, index + wide, p, len(scores))


@cache
def _exponential(n: int, k: int) -> tuple[float, ...]:
    """Hill's index of n exponential draws, DRAWS times: what is above an exponential's median is exponential again."""
    chance = random.Random(0)
    return tuple(hill([chance.expovariate(1.0) for _ in range(n)], k) for _ in range(DRAWS))
