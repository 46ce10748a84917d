"""Wilson's interval against its equation, a printed table, and scipy."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.tolerances import EXACT, LOOP

from kleash.intervals import Z95, wilson


@given(st.integers(1, 500), st.data())
@settings(deadline=None)
def test_wilson_is_where_the_score_test_just_accepts(n, data):
    """Its ends are the shares p with |x/n − p| = z √(p (1 − p) / n)."""
    right = data.draw(st.integers(0, n))
    low, high = wilson(right / n, n)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(right / n - end) == pytest.approx(Z95 * math.sqrt(end * (1 - end) / n), rel=LOOP, abs=LOOP)
    assert (low == pytest.approx(0, abs=EXACT)) == (right == 0)
    assert (high == pytest.approx(1, abs=EXACT)) == (right == n)


def test_wilson_as_printed():
    """Newcombe 1998, table I: 81 of 263 → 0.2553 to 0.3662; 1 of 29 → 0.0061 to 0.1718 (method 3)."""
    assert [round(x, 4) for x in wilson(81 / 263, 263)] == [0.2553, 0.3662]
    assert [round(x, 4) for x in wilson(1 / 29, 29)] == [0.0061, 0.1718]


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (17, 40), (40, 40)])
def test_wilson_is_scipys_with_any_quantile(k, n):
    expected = stats.binomtest(k, n).proportion_ci(0.9, method="wilson")
    found = wilson(k / n, n, float(stats.norm.ppf(0.95)))
    assert found == pytest.approx((expected.low, expected.high), abs=EXACT)
