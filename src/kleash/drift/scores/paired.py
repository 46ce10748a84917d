"""The change of a score from one model to the other on the same items, with its interval."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from kleash.drift import statistics
from kleash.drift.records import Interval
from kleash.drift.statistics import LEAST, ONE_CARRIES, TOO_FEW
from kleash.intervals import wilson

TOO_FEW_ITEMS = "too few items"
ONE_ITEM = "one item carries it"
_SAID = {TOO_FEW: TOO_FEW_ITEMS, ONE_CARRIES: ONE_ITEM}


def change(base: Sequence[float], tuned: Sequence[float], *, alpha: float = 0.05, seed: int = 0) -> Interval:
    """Mean of tuned − base over the items.

    Right-or-wrong scores: Newcombe's interval for paired shares, good from a few items on, also where nothing changed.
    Others: percentile-t over items. Fewer than 25 items: no interval.
    """
    before, after = np.asarray(base, np.float64), np.asarray(tuned, np.float64)
    gaps = after - before
    n = len(gaps)
    if not (np.isin(before, (0, 1)).all() and np.isin(after, (0, 1)).all()):
        found = statistics.mean(gaps, np.arange(n), alpha=alpha, seed=seed)
        return replace(found, warning=None if found.warning is None else _SAID[found.warning])
    value = float(gaps.mean())
    error = float(gaps.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    if n < LEAST:
        return Interval(value=value, standard_error=error, n=n, clusters=n, warning=TOO_FEW_ITEMS)
    low, high = newcombe(_cells(before, after), NormalDist().inv_cdf(1 - alpha / 2))
    return Interval(value=value, low=low, high=high, standard_error=error, n=n, clusters=n)


def newcombe(cells: tuple[int, int, int, int], z: float) -> tuple[float, float]:
    """The difference of two paired shares, second − first.

    Args:
        cells: items that were right both times, the second time only, the first time only, never.
        z: normal quantile.

    Source: Newcombe, Statistics in Medicine 17 (1998) 2635–2650, method 10.
    Proved by: tests/drift/scores/test_paired.py::test_newcombe_covers_by_enumeration
    """
    both, gained, lost, never = cells
    n = sum(cells)
    first, second = (both + lost) / n, (both + gained) / n
    low1, high1 = wilson(first, float(n), z)
    low2, high2 = wilson(second, float(n), z)
    product = (both + gained) * (lost + never) * (both + lost) * (gained + never)
    off = both * never - gained * lost
    corrected = max(off - n / 2, 0.0) if off > 0 else float(off)
    phi = corrected / math.sqrt(product) if product else 0.0

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))  # rounding aside, never negative: |phi| ≤ 1

    gap = second - first
    return gap - reach(second - low2, high1 - first), gap + reach(high2 - second, first - low1)


def _cells(before: np.ndarray, after: np.ndarray) -> tuple[int, int, int, int]:
    both = int((before * after).sum())
    gained, lost = int(after.sum()) - both, int(before.sum()) - both
    return both, gained, lost, len(before) - both - gained - lost
