"""Documents drawn anew: the cluster-robust error of a ratio, and percentile-t intervals in units of it. numpy only."""

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: Standard errors: a bound further away than this is none. It takes one document with nearly all of the variance, which
#: a third of the draws leave out.
NO_BOUND = 50.0
#: Draws at 95 %; more where a smaller error is asked for, for its quantile lies further out.
DRAWS = 2000
#: Cells (draws × documents) that are drawn at a time.
AT_A_TIME = 4_000_000

Floats = NDArray[np.float64]
Scale = Literal["plain", "log", "logit"]


def cr1(sums: Floats, sizes: Floats) -> tuple[float, float]:
    """The ratio Σ sums / Σ sizes and its cluster-robust standard error, with the factor G/(G−1)."""
    n, clusters = sizes.sum(), len(sizes)
    if not clusters:
        return math.nan, math.nan
    ratio = sums.sum() / n
    if clusters == 1:
        return float(ratio), math.nan
    off = sums - ratio * sizes
    return float(ratio), float(np.sqrt(clusters / (clusters - 1) * (off @ off)) / n)


def cr3(sums: Floats, sizes: Floats) -> tuple[float, float]:
    """The ratio's error by leaving each document out, and how many independent ones it is worth (Bell and McCaffrey).

    CR1 is too small where few documents of unequal size carry a mean: a long one draws the mean towards itself, so its
    own deviation looks small. CR3 divides each deviation by 1 − its document's share. The degrees of freedom are those
    of that error were the documents' means independent and equally variable.

    Source: Bell and McCaffrey, Survey Methodology 28 (2002) 169–181.
    Proved by: tests/drift/test_statistics.py::test_cr3_leaves_each_document_out
    """
    share = sizes / sizes.sum()
    ratio = sums.sum() / sizes.sum()
    error = float(np.sqrt((((sums - ratio * sizes) / (1 - share)) ** 2).sum()) / sizes.sum())
    scale = share / (1 - share)
    residual = scale[:, None] * (np.eye(len(share)) - share)
    spread = residual @ residual.T
    return error, float(np.trace(spread) ** 2 / (spread * spread).sum())


def percentile_t(sums: Floats, sizes: Floats, scale: Scale, alpha: float, seed: int) -> tuple[float, float]:
    """The interval of the ratio; NaN where the draws do not bound it."""
    clusters = len(sizes)
    value, error = cr1(sums, sizes)
    moments = np.stack([sums, sizes, sums * sums, sums * sizes, sizes * sizes], 1)
    draws = max(DRAWS, math.ceil(DRAWS * 0.05 / alpha))
    s, n, ss, sn, nn = np.concatenate([times @ moments for times in _times(clusters, draws, seed)]).T
    ratio = s / n
    spread = np.maximum(ss - 2 * ratio * sn + ratio**2 * nn, 0)  # rounding aside, a sum of squares
    errors = np.sqrt(clusters / (clusters - 1) * spread) / n
    scaled, slope = (change(np.append(ratio, value), scale) for change in (_to, _slope))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (scaled[:-1] - scaled[-1]) / (errors * slope[:-1])
    t = np.select([ratio == value, np.isnan(t)], [0.0, np.where(ratio < value, -np.inf, np.inf)], t)  # without spread
    under, over = np.quantile(t, [alpha / 2, 1 - alpha / 2], method="inverted_cdf")
    if max(abs(under), abs(over)) > NO_BOUND:
        return math.nan, math.nan
    middle, step = float(scaled[-1]), error * float(slope[-1])
    return _back(middle - float(over) * step, scale), _back(middle - float(under) * step, scale)


def _to(x: Floats, scale: Scale) -> Floats:
    with np.errstate(divide="ignore"):
        match scale:
            case "log":
                return np.log(x)
            case "logit":
                return np.log(x) - np.log1p(-x)
            case _:
                return x


def _slope(x: Floats, scale: Scale) -> Floats:
    """The derivative of `_to`."""
    with np.errstate(divide="ignore"):
        match scale:
            case "log":
                return 1 / x
            case "logit":
                return 1 / (x * (1 - x))
            case _:
                return np.ones_like(x)


def _back(y: float, scale: Scale) -> float:
    match scale:
        case "log":
            return math.exp(y)
        case "logit":
            return 1 / (1 + math.exp(-y))
        case _:
            return y


@lru_cache(maxsize=4)
def _times(clusters: int, draws: int, seed: int) -> tuple[Floats, ...]:
    """How often each document is in each draw of as many documents, with replacement: [draws, clusters], in pieces."""
    random = np.random.default_rng([seed, clusters])
    step = max(1, AT_A_TIME // clusters)
    pieces = []
    for start in range(0, draws, step):
        rows = min(step, draws - start)
        chosen = random.integers(clusters, size=(rows, clusters)) + np.arange(rows)[:, None] * clusters
        pieces.append(np.bincount(chosen.ravel(), minlength=rows * clusters).reshape(rows, clusters).astype(np.float64))
    return tuple(pieces)
