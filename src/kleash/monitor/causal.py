"""Looking back only: windows, runs of a condition, and where a change began. Pure numpy over rows.

Every function is causal: its value at row t is a function of rows up to t. So what a rule says of a growing log it
would have said of the whole one. NaN rows hold no number and are left out of every window.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def mean(x: Floats, window: int) -> Floats:
    """Mean of the last `window` rows that hold a number, fewer at the start; NaN where none does."""
    total, count = _sums(np.where(np.isfinite(x), x, 0.0), window), _sums(np.isfinite(x).astype(float), window)
    return np.divide(total, count, out=np.full(len(x), np.nan), where=count > 0)


def spread(x: Floats, window: int) -> Floats:
    """Standard deviation of the same rows; NaN with fewer than three."""
    finite = np.isfinite(x)
    y = np.where(finite, x - _first(x), 0.0)
    count = _sums(finite.astype(float), window)
    first, second = _sums(y, window), _sums(y * y, window)
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (second - first * first / count) / (count - 1)
    return np.where(count >= 3, np.sqrt(np.maximum(variance, 0.0)), np.nan)


def middle(x: Floats, window: int) -> Floats:
    """Median of the last `window` rows, of those that hold a number: half of them spiking does not move it."""
    padded = np.concatenate([np.full(window - 1, np.nan), x])
    return _nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window))


def before(x: Floats, rows: int) -> Floats:
    """The value `rows` rows ago; NaN where there is none."""
    shifted = np.full(len(x), np.nan)
    if rows < len(x):
        shifted[rows:] = x[:-rows]
    return shifted


def baseline(x: Floats, rows: int) -> Floats:
    """Median of the first `rows` rows that hold a number, NaN until they are there. It stays: no drift can move it."""
    where = np.flatnonzero(np.isfinite(x))
    level = np.full(len(x), np.nan)
    if len(where) >= rows:
        level[where[rows - 1] :] = np.median(x[where[:rows]])
    return level


def noise(x: Floats, window: int) -> Floats:
    """Standard deviation of a row about its neighbours, over the last `window` rows: a trend is no noise.

    From the median size of the differences of successive rows, which single jumps do not move (von Neumann 1941).
    """
    jumps = np.abs(np.diff(x, prepend=np.nan))
    padded = np.concatenate([np.full(window - 1, np.nan), jumps])
    return _MAD * _nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window))


#: The median |difference| of two independent normals is 0.9539 of their standard deviation.
_MAD = 1 / 0.9539


def _first(x: Floats) -> float:
    """The first number: taken off before sums of squares, so that little cancels."""
    finite = x[np.isfinite(x)]
    return float(finite[0]) if len(finite) else 0.0


def _nanmedian(windows: Floats) -> Floats:
    starts = range(0, len(windows), _AT_ONCE)
    return np.concatenate([_nanmedian_of(windows[start : start + _AT_ONCE]) for start in starts])


#: Windows whose medians are taken at a time: what bounds the memory.
_AT_ONCE = 20_000


def _nanmedian_of(windows: Floats) -> Floats:
    found = np.full(len(windows), np.nan)
    whole = np.isfinite(windows).all(1)
    found[whole] = np.median(windows[whole], axis=1)
    for row in np.flatnonzero(~whole):
        some = windows[row][np.isfinite(windows[row])]
        found[row] = np.median(some) if len(some) else np.nan
    return found


class Rise(NamedTuple):
    """Over a window: how much a least-squares line rises from its first row to its last, and how sure (t statistic)."""

    change: Floats
    t: Floats


def rise(x: Floats, window: int) -> Rise:
    """The line through the last `window` rows; NaN until two thirds of them hold numbers.

    t is that of independent rows. Rows of a training log follow each other, so ask for more than a table would.
    """
    finite = np.isfinite(x)
    y = np.where(finite, x - _first(x), 0.0)
    row = np.arange(len(x), dtype=float)
    w = finite.astype(float)
    s0, s1, s2 = _sums(w, window), _sums(w * row, window), _sums(w * row * row, window)
    sy, sxy, syy = _sums(y, window), _sums(y * row, window), _sums(y * y, window)
    with np.errstate(invalid="ignore", divide="ignore"):
        sxx = s2 - s1 * s1 / s0
        slope = (sxy - s1 * sy / s0) / sxx
        left = np.maximum(syy - sy * sy / s0 - slope * slope * sxx, 0.0)
        error = np.sqrt(left / (s0 - 2) / sxx)
        change = slope * (np.minimum(row + 1, window) - 1)
        t = slope / np.maximum(error, 1e-12 + 1e-6 * np.abs(slope))
    enough = s0 >= max(3, 2 * window // 3)
    return Rise(np.where(enough, change, np.nan), np.where(enough, t, np.nan))


def held(condition: Bools, rows: int) -> Bools:
    """True from the row on at which the condition has held for `rows` rows in a row."""
    length = np.arange(1, len(condition) + 1)
    last_false = np.maximum.accumulate(np.where(condition, 0, length))
    return length - last_false >= rows


def carried(x: Floats) -> Floats:
    """The newest number at or before each row; NaN before the first."""
    newest = np.maximum.accumulate(np.where(np.isfinite(x), np.arange(len(x)), 0))
    return x[newest]


def between(condition: Bools, rows: NDArray[np.intp]) -> Bools:
    """Between these rows, as it was at the last of them; False before the first."""
    last = np.searchsorted(rows, np.arange(len(condition)), side="right") - 1
    return (last >= 0) & condition[rows[np.maximum(last, 0)]]


def episodes(condition: Bools, *, hold: int, release: int) -> list[int]:
    """Rows of the alarms: the condition has held for `hold` rows. A new one needs `release` rows without it before."""
    alarm = held(condition, hold)
    calm = held(~condition, release)
    found: list[int] = []
    ready = 0
    starts = np.flatnonzero(alarm & ~np.concatenate([[False], alarm[:-1]]))
    calms = np.flatnonzero(calm)
    for row in starts:
        if row < ready:
            continue
        if found:
            after = calms[(calms > found[-1]) & (calms < row)]
            if not len(after):
                continue
        found.append(int(row))
        ready = row + 1
    return found


class Onset(NamedTuple):
    """The row at which a change began, and ± how many."""

    row: int
    within: int


#: The most rows that a change is looked for in: older ones are thinned out.
_MOST = 400
#: The fewest rows that two lines are laid through.
_KNEE = 12


def onset(x: Floats, alarm: int) -> Onset:
    """Where what was seen at row `alarm` began: a jump between two levels, a bend from a level, or a knee of two lines.

    Least squares over the rows up to the alarm; the knee, which has a number more, must earn it (Schwarz's criterion).
    `within`: the half width of the rows whose fit is not clearly worse.
    """
    rows = np.flatnonzero(np.isfinite(x[: alarm + 1]))
    if len(rows) < 4:
        return Onset(int(rows[0]) if len(rows) else 0, int(alarm))
    if len(rows) > _MOST:
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, _MOST).astype(int))]
    y, at = x[rows], np.arange(len(rows))
    errors = np.maximum(np.minimum(_jump(y), _bend(y, 0)), 0.0)
    if len(y) >= _KNEE:
        knee = np.maximum(_bend(y, 1), 0.0)
        if knee.min() * len(y) ** (1 / len(y)) < errors.min():
            errors = knee
    best = int(np.argmin(errors))
    # An F test's way: how far the residual may grow before a place is clearly worse (about 95 %).
    near = at[: len(errors)][errors <= errors[best] * (1 + 4 / len(y)) + 1e-300]
    within = max(int(rows[near[-1]] - rows[best]), int(rows[best] - rows[near[0]]), 1)
    return Onset(int(rows[best]), within)


def _jump(y: Floats) -> Floats:
    """Residual squares of two levels, the second from row k on, for each k from 0 to n − 2."""
    n = len(y)
    first, second = np.cumsum(y), np.cumsum(y * y)
    k = np.arange(1, n - 1)
    left = second[k - 1] - first[k - 1] ** 2 / k
    right = (second[-1] - second[k - 1]) - (first[-1] - first[k - 1]) ** 2 / (n - k)
    whole = second[-1] - first[-1] ** 2 / n
    return np.concatenate([[whole], left + right])


def _bend(y: Floats, degree: int) -> Floats:
    """Residual squares of a level (degree 0) or a line (1) that turns at row k, for each k from 0 to n − 2."""
    n = len(y)
    row = np.arange(n, dtype=float)
    before = np.linalg.qr(np.stack([row**power for power in range(degree + 1)], axis=1)).Q
    ramp = np.maximum(row[None, :] - np.arange(n - 1)[:, None], 0.0)
    ramp -= (ramp @ before) @ before.T
    rest = y - before @ (before.T @ y)
    size = (ramp**2).sum(1)
    product = ramp @ rest
    # From the first row or near the last one a second line cannot be told from the first.
    turned = np.divide(product * product, size, out=np.zeros(n - 1), where=size > 1e-9 * n)
    return rest @ rest - turned


def _sums(x: Floats, window: int) -> Floats:
    """Sum over the last `window` rows."""
    total = np.concatenate([[0.0], np.cumsum(x)])
    start = np.maximum(np.arange(1, len(x) + 1) - window, 0)
    return total[1:] - total[start]
