"""beta-DPO's rule against plain Python written from the paper and its code; its draws against their probabilities."""

import math
import statistics
from collections import Counter

import pytest
import torch
from tests.tolerances import EXACT

from kleash.rl.dynamic_beta import BetaRule, GapStatistics, dynamic_beta

RULE = BetaRule(beta0=0.1, alpha=0.6, momentum=0.9, keep=0.8, floor=1e-3)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_equals_the_authors_rule():
    """gap_mean ← 0.9 gap_mean + 0.1 mean, the same of the deviation, then β0 (1 + a (mean of the kept − gap_mean))."""
    steps = [[0.3, 1.2, -0.5, 0.1, 2.0], [1.3, 0.2, 0.5, 0.9, -1.0], [2.2, 1.2, 1.5, 0.1, 4.0]]
    before, mean, std = None, 0.0, 0.0
    for number, gaps in enumerate(steps):
        found = dynamic_beta(torch.tensor(gaps, dtype=torch.float64), RULE, before, generator(number))
        now = statistics.mean(gaps), statistics.stdev(gaps)
        mean, std = now if before is None else (0.9 * mean + 0.1 * now[0], 0.9 * std + 0.1 * now[1])
        assert found.statistics == pytest.approx((mean, std), rel=EXACT)
        kept = [gap for gap, keep in zip(gaps, found.keep.tolist(), strict=True) if keep]
        assert len(kept) == 4
        assert found.beta == pytest.approx(0.1 * (1 + 0.6 * (statistics.mean(kept) - mean)), rel=EXACT)
        before = found.statistics


def test_kept_pairs_are_drawn_by_how_usual_they_are():
    """The pair left out of three: Plackett–Luce with weights exp(−(gap − M0)²/2σ²), enumerated."""
    gaps, before = [0.0, 1.0, 2.5], GapStatistics(0.5, 1.0)
    rule = RULE._replace(keep=2 / 3 + 1e-9, momentum=1 - 1e-12)  # the statistics stay where they are
    weights = [math.exp(-0.5 * (gap - 0.5) ** 2) for gap in gaps]
    out = []
    for last in range(3):
        a, b = (w for i, w in enumerate(weights) if i != last)
        total = sum(weights)
        out.append(a / total * b / (total - a) + b / total * a / (total - b))
    n, draws = 6000, generator(3)
    seen = Counter(
        int((~dynamic_beta(torch.tensor(gaps), rule, before, draws).keep).nonzero()) for _ in range(n)
    )  # fmt: skip
    for last, p in enumerate(out):
        assert abs(seen[last] / n - p) < 4 * math.sqrt(p * (1 - p) / n)


def test_a_step_without_spread_keeps_any_pairs():
    """At the start every gap is 0: no division by a deviation of 0, and beta is β0."""
    found = dynamic_beta(torch.zeros(10), RULE, None, generator())
    assert found.beta == RULE.beta0
    assert int(found.keep.sum()) == 8
    assert found.statistics == (0.0, 0.0)


def test_one_pair_is_kept():
    assert dynamic_beta(torch.ones(1), RULE, None, generator()).keep.tolist() == [True]


def test_the_floor_is_met_and_told():
    """A fall of the gap below what is usual turns β0 (1 + a (…)) negative: beta stays at its floor."""
    found = dynamic_beta(torch.full((4,), -10.0), RULE, GapStatistics(5.0, 1.0), generator())
    assert found.floored
    assert found.beta == RULE.floor
    usual = dynamic_beta(torch.full((4,), 5.0), RULE, GapStatistics(5.0, 1.0), generator())
    assert not usual.floored


def test_the_same_draw_gives_the_same_pairs():
    gaps = torch.randn(20, generator=generator(1))
    first, again, other = (dynamic_beta(gaps, RULE, None, generator(seed)).keep for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
