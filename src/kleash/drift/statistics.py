"""Intervals for tokens that come in documents: 95 %, clustered, deterministic. numpy only.

Tokens of one document resemble each other, so n tokens say less than n independent ones. Whole documents are what is
drawn, and all that is said here treats a document as one draw. How often the intervals hold on real, heavy-tailed KLs
is in docs/runs/drift-coverage.md, and so is why these methods were taken and not others.

Values that are not finite are left out; the caller counts them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kleash.drift.records import Interval
from kleash.drift.resampling import cr1, cr3, percentile_t
from kleash.intervals import wilson

#: Fewer documents (or items) than this: no interval at all.
LEAST = 25
#: Fewer than this: the interval stands, with a warning beside it, for its measured coverage can be below 93 %
#: (docs/runs/drift-coverage.md). Of means and shares, and of quantiles.
ENOUGH, ENOUGH_FOR_QUANTILES = 50, 200
TOO_FEW = "too few documents"
FEW_LONG = "a few long documents carry it"
ONE_CARRIES = "one document carries it"
TOO_FAR_OUT = "too few tokens this far out"
TOO_FEW_ITEMS = "too few items"

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


def mean(
    values: ArrayLike, document: ArrayLike, *, positive: bool = False, alpha: float = 0.05, seed: int = 0
) -> Interval:
    """The mean over tokens with a percentile-t interval: documents are drawn anew, each draw in units of its own error.

    The mean is a ratio (all values over all tokens, both of which vary with the documents drawn); its standard error
    is CR1. A percentile-t interval is longer on the side of the long tail, which a symmetric one is not.

    Args:
        values: [n]. document: [n], the number of each token's document.
        positive: of quantities that cannot be negative: the interval is made on a log scale, where every document's
            sum is above 0.
        alpha: how often the interval may miss. seed: of the draws.

    Proved by: tests/drift/test_statistics.py::test_cr1_is_the_regression_on_a_constant,
    tests/drift/test_statistics.py::test_intervals_hold_on_heavy_tails_in_clusters
    """
    x, doc = _rows(values, document)
    sums, sizes = _totals(x, doc)
    variance = float(np.var(x, ddof=1)) if len(x) > 1 else None
    return of_totals(sums, sizes, positive=positive, variance=variance, alpha=alpha, seed=seed)


def proportion(flags: ArrayLike, document: ArrayLike, *, alpha: float = 0.05, seed: int = 0) -> Interval:
    """A share of tokens with a percentile-t interval on the logit scale.

    Where the tokens that differ are in too few documents for that, Wilson's interval at the effective number of tokens;
    where all or none are True, a document counts as one token.

    Proved by: tests/drift/test_statistics.py::test_a_share_without_exceptions_is_wilson_by_document,
    tests/drift/test_statistics.py::test_intervals_hold_on_heavy_tails_in_clusters
    """
    x, doc = _rows(flags, document)
    sums, sizes = _totals(x, doc)
    share, error = cr1(sums, sizes)
    n, clusters = len(x), len(sizes)
    if clusters < LEAST:
        return _nothing(share, n, clusters)
    found = share * (1 - share) / error**2 if error else None
    low, high = percentile_t(sums, sizes, "logit", alpha, seed) if error else (math.nan, math.nan)
    if math.isnan(low):
        z = NormalDist().inv_cdf(1 - alpha / 2)
        size = min(float(n), found or float(clusters)) * (z / _student(1 - alpha / 2, clusters - 1)) ** 2
        low, high = wilson(share, size, z)
    warning = _warning(sizes, ENOUGH)
    known = {"value": share, "standard_error": error, "effective_n": found, "warning": warning}
    return Interval(**known, low=low, high=high, n=n, clusters=clusters)


def quantiles(
    values: ArrayLike, document: ArrayLike, shares: Sequence[float], *, alpha: float = 0.05
) -> list[Interval]:
    """Quantiles of the tokens with Woodruff's intervals: the clustered interval of the share below, read off the data.

    The interval of the share is made on the logit scale with CR1. Where it reaches beyond the largest token seen, the
    data do not bound the quantile: no interval, and a warning.

    Proved by: tests/drift/test_statistics.py::test_a_quantile_is_the_share_below_turned_round,
    tests/drift/test_statistics.py::test_intervals_hold_on_heavy_tails_in_clusters
    """
    x, doc = _rows(values, document)
    if not len(x):
        return [_nothing(math.nan, 0, 0) for _ in shares]
    in_order = np.sort(x)
    sizes = np.bincount(doc).astype(np.float64)
    return [_quantile(x, doc, in_order, sizes, share, alpha) for share in shares]


def _quantile(x: Floats, doc: Whole, in_order: Floats, sizes: Floats, share: float, alpha: float) -> Interval:
    n, clusters = len(x), len(sizes)
    value = float(in_order[_place(share, n)])
    if clusters < LEAST:
        return _nothing(value, n, clusters)
    _, error = cr1(_totals((x <= value).astype(np.float64), doc)[0], sizes)
    known = {"value": value, "n": n, "clusters": clusters}
    if not error:  # every token is below it, or each document has the same share below it
        same = in_order[0] == in_order[-1]
        warning = _warning(sizes, ENOUGH_FOR_QUANTILES) if same else TOO_FAR_OUT
        return Interval(**known, low=value if same else None, high=value if same else None, warning=warning)
    spread = share * (1 - share)
    reach = _student(1 - alpha / 2, clusters - 1) * error / spread
    logit = math.log(share / (1 - share))
    low, high = (1 / (1 + math.exp(-(logit + sign * reach))) for sign in (-1, 1))
    if math.ceil(high * n) >= n:
        return Interval(**known, effective_n=spread / error**2, warning=TOO_FAR_OUT)
    return Interval(
        **known,
        low=float(in_order[_place(low, n)]),
        high=float(in_order[math.ceil(high * n)]),
        effective_n=spread / error**2,
        warning=_warning(sizes, ENOUGH_FOR_QUANTILES),
    )


def parts(
    values: ArrayLike, document: ArrayLike, part: ArrayLike, count: int, *, positive: bool = True, seed: int = 0
) -> list[Interval | None]:
    """The mean in each of `count` parts, with intervals that hold together in 95 % of all audits (Bonferroni).

    So far out in the tails draws of a few documents tell little: each bound is the wider one of the percentile-t
    interval's and Student's with CR3 and its degrees of freedom. None for a part without tokens. Parts with fewer than
    25 documents have no interval and take no share of the 5 %.

    Proved by: tests/drift/test_statistics.py::test_parts_hold_together,
    tests/drift/test_statistics.py::test_a_part_has_the_wider_bound
    """
    x, doc, where = np.asarray(values, np.float64), np.asarray(document), np.asarray(part)
    fine = np.isfinite(x)
    rows = [fine & (where == k) for k in range(count)]
    judged = sum(len(np.unique(doc[own])) >= LEAST for own in rows)
    alpha = 0.05 / max(judged, 1)
    made = [mean(x[own], doc[own], positive=positive, alpha=alpha, seed=seed) if own.any() else None for own in rows]
    return [
        None if found is None else _wider(found, *_totals(*_rows(x[own], doc[own])), positive, alpha)
        for found, own in zip(made, rows, strict=True)
    ]


def _wider(found: Interval, sums: Floats, sizes: Floats, positive: bool, alpha: float) -> Interval:
    """The interval, widened to Student's with CR3, where documents differ at all."""
    if found.low is None or found.high is None or not found.standard_error:
        return found
    error, freedom = cr3(sums, sizes)
    reach = _student(1 - alpha / 2, freedom) * error
    if positive and bool((sums > 0).all()):
        low, high = (found.value * math.exp(sign * reach / found.value) for sign in (-1, 1))
    else:
        low, high = found.value - reach, found.value + reach
    return replace(found, low=min(low, found.low), high=max(high, found.high))


def _rows(values: ArrayLike, document: ArrayLike) -> tuple[Floats, Whole]:
    """The finite values, and their documents numbered from 0 without a gap."""
    x, doc = np.asarray(values, np.float64), np.asarray(document)
    fine = np.isfinite(x)
    return x[fine], np.unique(doc[fine], return_inverse=True)[1].astype(np.int64)


def _totals(x: Floats, doc: Whole) -> tuple[Floats, Floats]:
    return np.bincount(doc, x).astype(np.float64), np.bincount(doc).astype(np.float64)


def of_totals(
    sums: Floats,
    sizes: Floats,
    *,
    positive: bool = False,
    variance: float | None = None,
    alpha: float = 0.05,
    seed: int = 0,
) -> Interval:
    """The mean Σ sums / Σ sizes of documents of which only these are known, with its percentile-t interval.

    variance: of single tokens, for the effective number; None: not known.
    """
    n, clusters = int(sizes.sum()), len(sizes)
    value, error = cr1(sums, sizes)
    if clusters < LEAST:
        return _nothing(value, n, clusters)
    if not error:
        low = high = value
    else:
        scale = "log" if positive and bool((sums > 0).all()) else "plain"
        low, high = percentile_t(sums, sizes, scale, alpha, seed)
    bounded = not math.isnan(low)
    return Interval(
        value=value,
        low=low if bounded else None,
        high=high if bounded else None,
        standard_error=error,
        n=n,
        clusters=clusters,
        effective_n=variance / error**2 if error and variance is not None else None,
        warning=_warning(sizes, ENOUGH) if bounded else ONE_CARRIES,
    )


def _warning(sizes: Floats, enough: int) -> str | None:
    if len(sizes) < enough:
        return TOO_FEW
    return FEW_LONG if sizes.sum() ** 2 / (sizes @ sizes) < LEAST else None


def _nothing(value: float, n: int, clusters: int) -> Interval:
    return Interval(value=value, n=n, clusters=clusters, warning=TOO_FEW)


def _place(share: float, n: int) -> int:
    """Where, among n values in order, the smallest is that has at least this share at or below it."""
    return min(max(math.ceil(share * n - 1e-9) - 1, 0), n - 1)


def _student(p: float, df: int | float) -> float:
    """Student's quantile by its expansion in 1/df: right to 1e-5 from 24 degrees on, to 1e-3 from 10 on."""
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, 1))
