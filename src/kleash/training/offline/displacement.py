"""Likelihood displacement: the margin rises while the chosen answers themselves become less likely.

A preference loss knows only the difference of both sides. Where it pushes the rejected answer down it may take the
chosen one along, and the mass goes to texts that nobody judged. It is watched against the log-probs that the policy had
when the run began, on always the same pairs.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kleash.masked import clustered_ratio

#: Both changes must be so many standard errors from 0 before a word is said.
SURE = 3.0
#: Pairs that are watched where nothing is held out: the first of those trained on.
WATCHED = 128


class Change(NamedTuple):
    """Mean changes since the run began, nats per sequence, with standard errors clustered by prompt."""

    chosen: float
    chosen_error: float | None
    margin: float
    margin_error: float | None


def change(first: Float[Tensor, "N 2"], now: Float[Tensor, "N 2"], cluster: Int[Tensor, " N"]) -> Change:
    """Of log π(chosen), and of log π(chosen) − log π(rejected), pair by pair.

    Args:
        first, now: log π of chosen and rejected, nats per sequence. cluster: which prompt a pair belongs to.
    """
    moved = (now - first).double()
    one = torch.ones(len(moved), dtype=torch.float64)
    return Change(
        *clustered_ratio(moved[:, 0], one, cluster),
        *clustered_ratio(moved[:, 0] - moved[:, 1], one, cluster),
    )


def displaced(found: Change) -> str | None:
    """In words, with the numbers; None while the chosen answers hold, or nothing can be told from the noise."""
    if found.chosen_error is None or found.margin_error is None:
        return None
    falls = found.chosen < -SURE * found.chosen_error
    rises = found.margin > SURE * found.margin_error
    if not (falls and rises):
        return None
    return (
        f"likelihood displacement: since the run began the chosen answers became {-found.chosen:.3g} ± "
        f"{found.chosen_error:.2g} nats less likely per sequence, while their margin over the rejected ones rose by "
        f"{found.margin:.3g} ± {found.margin_error:.2g}. The probability goes to texts that nobody judged: look at the "
        "samples, and at a lower learning rate, a larger beta, or a loss with a likelihood term"
    )
