"""Intervals of clustered tokens: against formulas written out anew, scipy, and planted heavy tails."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from tests.tolerances import DRAWN, EXACT, PRINTED

from kleash.drift import resampling, statistics
from kleash.drift.records import Interval
from kleash.drift.statistics import LEAST, mean, parts, proportion, quantiles

#: Documents of a planted population, and how their KLs are spread: tokens within a document share its level.
POPULATION = 20_000


def planted(seed: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal tokens around log-normal documents of 5 to 80 tokens: values [n], document [n]."""
    random = np.random.default_rng(seed)
    sizes = random.integers(5, 81, documents)
    level = np.repeat(random.normal(0, 0.7, documents), sizes)
    return np.exp(-4 + level + random.normal(0, 1.5, sizes.sum())), np.repeat(np.arange(documents), sizes)


def holds(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high


def test_cr1_is_the_regression_on_a_constant() -> None:
    """(X'X)⁻¹ (Σ over clusters of X'e e'X) (X'X)⁻¹ · G/(G−1), with X a column of ones, in matrices."""
    x, doc = planted(0, 40)
    ones = np.ones((len(x), 1))
    bread = np.linalg.inv(ones.T @ ones)
    error = x - x.mean()
    meat = sum(np.outer(score, score) for g in range(40) for score in [ones[doc == g].T @ error[doc == g]])
    expected = math.sqrt((bread @ meat @ bread)[0, 0] * 40 / 39)
    found = mean(x, doc)
    assert found.value == pytest.approx(float(x.mean()), rel=EXACT)
    assert found.standard_error == pytest.approx(expected, rel=EXACT)
    assert found.effective_n == pytest.approx(float(x.var(ddof=1)) / expected**2, rel=EXACT)
    assert (found.n, found.clusters) == (len(x), 40)


def test_tokens_that_are_documents_are_independent() -> None:
    x = np.random.default_rng(0).exponential(size=400)
    found = mean(x, np.arange(400))
    assert found.standard_error == pytest.approx(float(stats.sem(x)), rel=EXACT)
    assert found.effective_n == pytest.approx(400, rel=EXACT)


def test_a_document_said_twice_says_nothing_new() -> None:
    x, doc = planted(1, 60)
    once, twice = mean(x, doc), mean(np.tile(x, 2), np.tile(doc, 2))
    assert twice.standard_error == pytest.approx(once.standard_error, rel=EXACT)
    assert (twice.low, twice.high) == (pytest.approx(once.low, rel=EXACT), pytest.approx(once.high, rel=EXACT))


def test_percentile_t_drawn_document_by_document() -> None:
    """The same interval from a slow loop that draws whole documents and makes each draw's mean and error afresh."""
    x, doc = planted(2, 30)
    by_document = [x[doc == g] for g in range(30)]
    random = np.random.default_rng([7, 30])

    def ratio(chosen: list[np.ndarray]) -> tuple[float, float]:
        everything = np.concatenate(chosen)
        value = everything.mean()
        off = np.array([(one - value).sum() for one in chosen])
        return value, math.sqrt(30 / 29 * (off**2).sum()) / len(everything)

    value, error = ratio(by_document)
    pulls = []
    for row in random.integers(30, size=(resampling.DRAWS, 30)):
        drawn, spread = ratio([by_document[i] for i in row])
        pulls.append((drawn - value) / spread)
    pulls.sort()
    under, over = pulls[math.ceil(0.025 * len(pulls)) - 1], pulls[math.ceil(0.975 * len(pulls)) - 1]
    found = mean(x, doc, seed=7)
    assert found.low == pytest.approx(value - over * error, rel=PRINTED)
    assert found.high == pytest.approx(value - under * error, rel=PRINTED)


def test_the_interval_is_longer_on_the_side_of_the_tail() -> None:
    found = mean(*planted(3, 100))
    assert found.low is not None and found.high is not None
    assert found.high - found.value > 1.2 * (found.value - found.low)


def test_a_share_without_exceptions_is_wilson_by_document() -> None:
    """30 documents that agree everywhere: no more sure than 30 tokens, with Student's factor."""
    found = proportion(np.ones(3000, bool), np.repeat(np.arange(30), 100))
    z = stats.norm.ppf(0.975)
    n = 30 * (z / stats.t.ppf(0.975, 29)) ** 2
    assert (found.value, found.high) == (1.0, pytest.approx(1.0, abs=EXACT))
    assert found.low == pytest.approx(n / (n + z**2), rel=PRINTED)
    assert found.effective_n is None


def test_students_quantile_of_few_degrees() -> None:
    for df in (10, 12.5, 18):
        assert statistics._student(0.998, df) == pytest.approx(stats.t.ppf(0.998, df), rel=PRINTED)


@pytest.mark.parametrize("df", [24, 40, 299])
def test_students_quantile(df: int) -> None:
    for p in (0.9, 0.975, 0.999):
        assert statistics._student(p, df) == pytest.approx(stats.t.ppf(p, df), rel=PRINTED)


def test_a_quantile_is_the_share_below_turned_round() -> None:
    x, doc = planted(4, 120)
    [found] = quantiles(x, doc, [0.9])
    in_order = np.sort(x)
    assert found.value == in_order[math.ceil(0.9 * len(x)) - 1]
    below = x <= found.value
    off = np.array([(below[doc == g] - below.mean()).sum() for g in range(120)])
    error = math.sqrt(120 / 119 * (off**2).sum()) / len(x)
    reach = stats.t.ppf(0.975, 119) * error / 0.09
    low, high = (1 / (1 + math.exp(-(math.log(9) + sign * reach))) for sign in (-1, 1))
    assert found.low == in_order[math.ceil(low * len(x)) - 1]
    assert found.high == in_order[math.ceil(high * len(x))]


def test_quantiles_are_in_order() -> None:
    found = quantiles(*planted(5, 300), [0.5, 0.9, 0.95, 0.99, 0.999])
    for a, b in pairwise(found):
        assert a.value < b.value
        assert a.low is not None and b.low is not None and a.low < b.low


def test_a_quantile_beyond_the_data_has_no_interval() -> None:
    [found] = quantiles(*planted(6, 30), [0.999])
    assert (found.low, found.high, found.warning) == (None, None, statistics.TOO_FAR_OUT)


def test_too_few_documents() -> None:
    for few, warning in ((LEAST - 1, True), (LEAST, True), (statistics.ENOUGH, False)):
        x, doc = planted(7, few)
        for found in (mean(x, doc), proportion(x > 0.05, doc)):
            assert (found.low is None) == (few < LEAST)
            assert (found.warning == statistics.TOO_FEW) == warning
    [found] = quantiles(*planted(7, statistics.ENOUGH_FOR_QUANTILES - 1), [0.5])
    assert found.low is not None and found.warning == statistics.TOO_FEW


def test_a_book_among_notes() -> None:
    x, _ = planted(8, 300)
    doc = np.minimum(np.arange(len(x)) // 5, 120)  # 120 documents of 5 tokens, and one with all the rest
    assert mean(x, doc).warning == statistics.FEW_LONG
    assert mean(np.where(doc == 120, 1.0, 0.0), doc).warning == statistics.ONE_CARRIES


def test_nothing_moved_is_an_interval_of_no_width() -> None:
    found = mean(np.zeros(3000), np.repeat(np.arange(100), 30), positive=True)
    assert (found.value, found.low, found.high, found.warning) == (0, 0, 0, None)
    [half] = quantiles(np.zeros(3000), np.repeat(np.arange(100), 30), [0.5])
    assert (half.low, half.high) == (0, 0)


def test_what_is_not_finite_is_left_out() -> None:
    x, doc = planted(9, 80)
    with_holes = np.append(x, [math.nan, math.inf])
    assert mean(with_holes, np.append(doc, [3, 80])) == mean(x, doc)
    assert quantiles(with_holes, np.append(doc, [3, 80]), [0.5]) == quantiles(x, doc, [0.5])


def test_no_token_at_all() -> None:
    nothing = mean([], [])
    assert math.isnan(nothing.value) and (nothing.n, nothing.clusters, nothing.low) == (0, 0, None)
    assert quantiles([], [], [0.5])[0].low is None and proportion([], []).low is None


def test_a_seed_repeats_and_another_does_not() -> None:
    x, doc = planted(10, 50)
    assert mean(x, doc, seed=1) == mean(x, doc, seed=1)
    assert mean(x, doc, seed=1) != mean(x, doc, seed=2)


def test_intervals_hold_on_heavy_tails_in_clusters() -> None:
    """300 audits of 100 documents each: 95 % within four standard errors of the share; iid errors hold far less."""
    x, doc = planted(11, POPULATION)
    starts = np.searchsorted(doc, np.arange(POPULATION + 1))
    truth = [x.mean(), (x > 0.05).mean(), *np.quantile(x, [0.5, 0.95], method="inverted_cdf")]
    random = np.random.default_rng(0)
    held, naive = np.zeros(4), 0
    for _ in range(300):
        rows = [np.arange(starts[g], starts[g + 1]) for g in random.integers(POPULATION, size=100)]
        own, mine = x[np.concatenate(rows)], np.repeat(np.arange(100), [len(r) for r in rows])
        found = [mean(own, mine, positive=True), proportion(own > 0.05, mine), *quantiles(own, mine, [0.5, 0.95])]
        held += [
            i.low is not None and i.high is not None and i.low <= t <= i.high for i, t in zip(found, truth, strict=True)
        ]
        naive += abs(own.mean() - truth[0]) <= 1.96 * stats.sem(own)
    slack = 4 * math.sqrt(0.95 * 0.05 / 300)
    assert (held / 300 > 0.95 - slack).all(), held / 300
    assert naive / 300 < 0.85


def test_parts_hold_together() -> None:
    """Ten parts with the same mean: all ten intervals hold at once in 95 % of 80 audits, 27 documents to a part.

    The square root is what makes the tails light enough for so few documents.
    """
    x, doc = planted(12, POPULATION)
    x = np.sqrt(x)
    starts = np.searchsorted(doc, np.arange(POPULATION + 1))
    random = np.random.default_rng(1)
    held = 0
    for _ in range(80):
        rows = [np.arange(starts[g], starts[g + 1]) for g in random.integers(POPULATION, size=270)]
        own, mine = x[np.concatenate(rows)], np.repeat(np.arange(270), [len(r) for r in rows])
        found = parts(own, mine, mine // 27, 10)
        held += all(i is not None and holds(i, x.mean()) for i in found)
    assert held / 80 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 80)


def test_cr3_leaves_each_document_out() -> None:
    """The deviations are those of a document's mean from the others'; the degrees of freedom, of simulated errors."""
    random = np.random.default_rng(0)
    sizes = random.integers(5, 81, 27).astype(float)
    sums = random.normal(1, 0.5, 27) * sizes
    error, freedom = resampling.cr3(sums, sizes)
    n = sizes.sum()
    gaps = [s - m * (sums.sum() - s) / (n - m) for s, m in zip(sums, sizes, strict=True)]
    assert error == pytest.approx(math.sqrt(sum(gap**2 for gap in gaps)) / n, rel=EXACT)
    draws = random.normal(size=(40_000, 27)) * sizes
    off = (draws - draws.sum(1, keepdims=True) / n * sizes) / (1 - sizes / n)
    squares = (off**2).sum(1)
    assert freedom == pytest.approx(2 * squares.mean() ** 2 / squares.var(), rel=DRAWN)


@pytest.mark.parametrize("positive", [True, False])
def test_a_part_has_the_wider_bound(positive: bool) -> None:
    x, doc = planted(14, 60)
    where = doc % 2
    for number, found in enumerate(parts(x, doc, where, 2, positive=positive)):
        own, mine = x[where == number], doc[where == number]
        drawn = mean(own, mine, positive=positive, alpha=0.025)
        sums, sizes = (np.array([f(own[mine == g]) for g in np.unique(mine)], float) for f in (np.sum, len))
        error, freedom = resampling.cr3(sums, sizes)
        reach = stats.t.ppf(1 - 0.0125, freedom) * error
        low, high = (
            (drawn.value * math.exp(-reach / drawn.value), drawn.value * math.exp(reach / drawn.value))
            if positive
            else (drawn.value - reach, drawn.value + reach)
        )
        assert found is not None and drawn.low is not None and drawn.high is not None
        assert found.low == pytest.approx(min(low, drawn.low), rel=PRINTED)
        assert found.high == pytest.approx(max(high, drawn.high), rel=PRINTED)


def test_a_part_without_tokens_is_not_measured() -> None:
    x, doc = planted(13, 40)
    some, none, few = parts(x, doc, np.where(doc < 38, 0, 2), 3)
    assert none is None and some is not None and few is not None
    assert some.value == mean(x[doc < 38], doc[doc < 38], positive=True).value
    assert few.low is None and few.clusters == 2


def test_an_audit_takes_less_than_two_seconds() -> None:
    """What 40,000 tokens in 300 documents cost, by the number of draws, not by the clock: draws are by document."""
    pieces = resampling._times(300, resampling.DRAWS, 0)
    assert sum(piece.size for piece in pieces) == 300 * resampling.DRAWS
    assert all(piece.size <= resampling.AT_A_TIME for piece in pieces)
    assert all((piece.sum(1) == 300).all() for piece in pieces)
