"""What a nat of KL earned: the reward's slope on it, over a stretch of rows."""

from collections.abc import Sequence

import numpy as np

from kleash.report.charts import short
from kleash.runlog.series import Column, TrainLog

#: As many rows as a run's own `price` is fitted on.
WINDOW = 20


def slope(reward: Column, kl: Column) -> float | None:
    """Reward per nat by least squares; None with under half a window of rows, or a KL that did not vary.

    Source: envelope theorem dE[r]/dKL = beta at the optimum; Korbak et al. 2022, arXiv 2205.11275.
    """
    both = np.isfinite(reward) & np.isfinite(kl)
    if both.sum() < WINDOW // 2:
        return None
    x, y = kl[both] - kl[both].mean(), reward[both] - reward[both].mean()
    spread = float(x @ x)
    return float(x @ y) / spread if spread > 1e-12 * max(1.0, float(kl[both].mean() ** 2)) else None


def at_rows(log: TrainLog, rows: Sequence[int]) -> list[float | None]:
    """The price at these rows, each from the window that ends there."""
    reward, kl = log.column("reward"), log.column("kl_ref_sequence")
    if reward is None or kl is None:
        return [None] * len(rows)
    return [slope(reward[max(0, n - WINDOW + 1) : n + 1], kl[max(0, n - WINDOW + 1) : n + 1]) for n in rows]


def price_of(log: TrainLog, since: int | None) -> str | None:
    """In words: before the change and after it, where there was one; else over the whole log."""
    reward, kl = log.column("reward"), log.column("kl_ref_sequence")
    if reward is None or kl is None:
        return None
    if since is not None:
        row = int(np.searchsorted(log.step, since))
        before, after = slope(reward[:row], kl[:row]), slope(reward[row:], kl[row:])
        if before is not None and after is not None:
            return f"{three(before)} reward per nat before step {since}, {three(after)} after"
    whole = slope(reward, kl)
    return None if whole is None else f"{three(whole)} reward per nat over the log"


def three(value: float) -> str:
    return short(float(f"{value:.3g}"))
