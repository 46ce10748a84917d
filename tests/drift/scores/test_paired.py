"""The paired change of a score: exact coverage by enumeration, and what it must do at the edges."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats
from tests.tolerances import EXACT

from kleash.drift import statistics
from kleash.drift.scores.paired import ONE_ITEM, TOO_FEW_ITEMS, change, newcombe

Z = float(stats.norm.ppf(0.975))


def test_newcombe_covers_by_enumeration() -> None:
    """All outcomes of 30 items, weighted by their probability: 95 % holds on average, and never much less."""
    n = 30
    outcomes = [(a, b, c, n - a - b - c) for a, b, c in product(range(n + 1), repeat=3) if a + b + c <= n]
    bounds = np.array([newcombe(cells, Z) for cells in outcomes])
    found = []
    for p in ((0.4, 0.1, 0.1, 0.4), (0.2, 0.3, 0.05, 0.45), (0.7, 0.02, 0.13, 0.15), (0.05, 0.6, 0.05, 0.3)):
        weight = stats.multinomial(n, p).pmf(np.array(outcomes))
        gap = p[1] - p[2]
        found.append(float(weight[(bounds[:, 0] <= gap) & (gap <= bounds[:, 1])].sum()))
    assert min(found) > 0.93 and 0.94 < sum(found) / len(found) < 0.98, found


def test_newcombe_turned_round_is_its_negative() -> None:
    low, high = newcombe((20, 9, 3, 8), Z)
    other = newcombe((20, 3, 9, 8), Z)
    assert (-high, -low) == pytest.approx(other, abs=EXACT)


def test_of_unrelated_models_it_is_the_square_and_add_interval() -> None:
    """With phi = 0 the reach is the root of the sum of squares of both shares' own Wilson reaches."""
    cells = (10, 10, 10, 10)
    first = stats.binomtest(20, 40).proportion_ci(method="wilson")
    reach = math.hypot(0.5 - first.low, first.high - 0.5)
    assert newcombe(cells, Z) == pytest.approx((-reach, reach), abs=EXACT)


def test_nothing_changed() -> None:
    right = [1.0, 0.0] * 40
    found = change(right, right)
    assert found.value == 0 and found.low is not None and found.high is not None
    assert -0.1 < found.low < 0 < found.high < 0.1, "an interval, though no item changed"


def test_all_right_where_all_was_wrong() -> None:
    found = change([0.0] * 40, [1.0] * 40)
    assert found.value == 1 and found.high == pytest.approx(1, abs=EXACT)
    assert found.low is not None and 0.85 < found.low < 1


def test_scores_that_are_not_right_or_wrong() -> None:
    random = np.random.default_rng(0)
    base, gap = random.normal(size=60), random.normal(0.5, 1, 60)
    found = change(list(base), list(base + gap))
    assert found.value == pytest.approx(float(gap.mean()), rel=EXACT)
    assert found.standard_error == pytest.approx(float(stats.sem(gap)), rel=EXACT)
    assert found.low is not None and found.high is not None and found.low < gap.mean() < found.high
    wider = change(list(base), list(base + gap), alpha=0.005)
    assert wider.low is not None and wider.low < found.low


def test_few_items() -> None:
    for values in ([1.0, 0.0] * 12, [0.3, 0.1] * 12):
        found = change(values, values[::-1])
        assert (found.low, found.high, found.warning, found.n) == (None, None, TOO_FEW_ITEMS, 24)
    some = change([0.3, 0.1] * 20, [0.1, 0.5] * 20)
    assert some.low is not None and some.warning == TOO_FEW_ITEMS and some.n < statistics.ENOUGH


def test_one_item_that_changed() -> None:
    found = change([0.5] * 100, [0.5] * 99 + [3.0])
    assert (found.low, found.warning) == (None, ONE_ITEM)
