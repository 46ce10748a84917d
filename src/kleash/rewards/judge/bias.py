"""How far a judge goes by the place of an answer instead of by the answer."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kleash.intervals import Z95, wilson


@dataclass(frozen=True, slots=True)
class Interval:
    """A share or a mean with its 95 % interval, over n pairs. standard_error: clustered by prompt."""

    value: float
    low: float
    high: float
    standard_error: float
    n: int


def position_bias(
    shown_first: Sequence[float], shown_second: Sequence[float], clusters: Sequence[Hashable]
) -> Interval | None:
    """How much an answer's probability of winning rises when it is shown first: mean of p_first − p_second.

    Args:
        shown_first: P(a wins) where a is shown first; shown_second: where the same pair is shown the other way round.
        clusters: what makes pairs alike: their prompts.

    A judge that takes the first answer whatever it is in a share s of the pairs, and judges rightly in the others, has
    a bias of s, and prefers the first answer in 1/2 + s/2 of its verdicts. Each pair is its own control. The interval
    is m ± 1.96 standard errors clustered by prompt; where all pairs say the same, which has no spread, Wilson's on
    (1 + m) / 2. None without pairs.

    Source: Wang et al. 2023, "Large Language Models are not Fair Evaluators", arXiv 2305.17926 (the two orders);
        Liang & Zeger 1986, Biometrika 73 (the clustered standard error).
    Proved by: tests/rewards/judge/test_bias.py::test_a_planted_bias_is_found_and_the_interval_covers_it
    """
    d = [a - b for a, b in zip(shown_first, shown_second, strict=True)]
    if not d:
        return None
    m, n = math.fsum(d) / len(d), len(d)
    sums: dict[Hashable, float] = {}
    for value, cluster in zip(d, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value - m
    groups = len(sums)
    spread = math.fsum(s * s for s in sums.values())
    error = math.sqrt(spread * groups / (groups - 1)) / n if groups > 1 else 0.0
    if error > 0:
        return Interval(m, m - Z95 * error, m + Z95 * error, error, n)
    low, high = wilson((1 + m) / 2, groups)
    return Interval(m, 2 * low - 1, 2 * high - 1, error, n)


def agreement(agreed: Sequence[bool]) -> Interval | None:
    """Share of pairs on which two judges, or a judge's two orders, name the same winner; Wilson's interval."""
    if not agreed:
        return None
    n, k = len(agreed), sum(agreed)
    low, high = wilson(k / n, n)
    return Interval(k / n, low, high, math.sqrt(k / n * (1 - k / n) / n), n)
