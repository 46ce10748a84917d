"""What a nat of KL earned, along a log and in words."""

from collections.abc import Sequence

import numpy as np

from kleash.report.charts import short
from kleash.runlog.price import WINDOW, slope
from kleash.runlog.series import TrainLog


def at_rows(log: TrainLog, rows: Sequence[int]) -> list[float | None]:
    """The price at these rows, each from the window that ends there."""
    reward, kl = log.column("reward"), log.column("kl_ref_sequence")
    if reward is None or kl is None:
        return [None] * len(rows)
    return [slope(kl[max(0, n - WINDOW + 1) : n + 1], reward[max(0, n - WINDOW + 1) : n + 1]) for n in rows]


def price_of(log: TrainLog, since: int | None) -> str | None:
    """In words: before the change and after it, where there was one; else over the whole log."""
    reward, kl = log.column("reward"), log.column("kl_ref_sequence")
    if reward is None or kl is None:
        return None
    if since is not None:
        row = int(np.searchsorted(log.step, since))
        before, after = slope(kl[:row], reward[:row]), slope(kl[row:], reward[row:])
        if before is not None and after is not None:
            return f"{three(before)} reward per nat before step {since}, {three(after)} after"
    whole = slope(kl, reward)
    return None if whole is None else f"{three(whole)} reward per nat over the log"


def three(value: float) -> str:
    return short(float(f"{value:.3g}"))
