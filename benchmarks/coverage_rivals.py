"""Other intervals of a mean over clustered tokens, for the page that says why `kleash.drift.statistics` uses its own.

Written for clarity from their definitions: Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapters 12
to 14 (percentile, BCa, percentile-t).
"""

from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from kleash.drift import statistics

DRAWS = 1000
NORMAL = NormalDist()
Bounds = tuple[float, float]


def iid(x: np.ndarray, document: np.ndarray) -> Bounds:
    half = 1.96 * x.std(ddof=1) / np.sqrt(len(x))
    return x.mean() - half, x.mean() + half


def cr1(x: np.ndarray, document: np.ndarray) -> Bounds:
    found = statistics.mean(x, document)
    half = statistics._student(0.975, found.clusters - 1) * (found.standard_error or 0.0)
    return found.value - half, found.value + half


def percentile(x: np.ndarray, document: np.ndarray) -> Bounds:
    low, high = np.quantile(_drawn(x, document), [0.025, 0.975])
    return float(low), float(high)


def bca(x: np.ndarray, document: np.ndarray) -> Bounds:
    """Bias-corrected and accelerated, the acceleration by leaving out one document at a time."""
    drawn = _drawn(x, document)
    sums, sizes = np.bincount(document, x), np.bincount(document)
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    off = without.mean() - without
    acceleration = (off**3).sum() / (6 * (off**2).sum() ** 1.5)
    below = min(max((drawn < x.mean()).mean(), 1 / DRAWS), 1 - 1 / DRAWS)
    bias = NORMAL.inv_cdf(below)
    shifted = [bias + NORMAL.inv_cdf(p) for p in (0.025, 0.975)]
    low, high = np.quantile(drawn, [NORMAL.cdf(bias + z / (1 - acceleration * z)) for z in shifted])
    return float(low), float(high)


def percentile_t(x: np.ndarray, document: np.ndarray) -> Bounds:
    found = statistics.mean(x, document, positive=True)
    return (np.nan if found.low is None else found.low, np.nan if found.high is None else found.high)


def _drawn(x: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Means of audits that draw as many documents from this one."""
    sums, sizes = np.bincount(document, x), np.bincount(document)
    chosen = np.random.default_rng(0).integers(len(sums), size=(DRAWS, len(sums)))
    return sums[chosen].sum(1) / sizes[chosen].sum(1)


RIVALS: dict[str, Callable[[np.ndarray, np.ndarray], Bounds]] = {
    "iid": iid,
    "CR1": cr1,
    "percentile": percentile,
    "BCa": bca,
    "percentile-t": percentile_t,
}
