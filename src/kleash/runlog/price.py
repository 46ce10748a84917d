"""What a nat of KL earned: the reward's slope on it, over a stretch of a run."""

import math
from collections.abc import Iterable

#: Rows that a run's own `price` is fitted on, and the page's.
WINDOW = 20


def slope(kl: Iterable[float | None], reward: Iterable[float | None]) -> float | None:
    """Reward per nat by least squares; None with under half a window of rows that hold both, or a KL that did not vary.

    Source: envelope theorem dE[r]/dKL = beta at the optimum; Korbak et al. 2022, arXiv 2205.11275.
    Proved by: tests/runlog/test_price.py::test_the_price_is_numpys_line
    """
    rows = [
        (float(x), float(y))
        for x, y in zip(kl, reward, strict=True)
        if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)
    ]
    if len(rows) < WINDOW // 2:
        return None
    k, r = (math.fsum(values) / len(rows) for values in zip(*rows, strict=True))
    spread = math.fsum((x - k) ** 2 for x, _ in rows)
    if spread <= 1e-12 * max(1.0, k * k):
        return None
    return math.fsum((x - k) * (y - r) for x, y in rows) / spread
