"""Likelihood displacement: the margin rises while the chosen answers themselves become less likely.

A preference loss knows only the difference of both sides. Where it pushes the rejected answer down it may take the
chosen one along, and the mass goes to texts that nobody judged. It is watched against the log-probs that the policy had
when the run began, on always the same pairs.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.masked import clustered_ratio

#: Both changes must be so many standard errors from 0 before a word is said.
SURE = 3.0
#: Pairs that are watched where nothing is held out: the first of those trained on.
WATCHED = 128


class Change(NamedTuple):
    """Mean changes since the run began, nats per sequence, with standard errors clustered by prompt.

    chosen: of log π of the chosen (or wanted) texts. margin: that less the same of the others.
    """

    chosen: float | None
    chosen_error: float | None
    margin: float | None
    margin_error: float | None


def change(
    first: Float[Tensor, " R"], now: Float[Tensor, " R"], good: Bool[Tensor, " R"], prompt: Int[Tensor, " R"]
) -> Change:
    """Of each text's log π. good: the chosen ones. prompt: which one a text answers.

    The margin's error is that of a difference of means, by the sums of its influences over each prompt: texts of one
    prompt, the two sides of a pair above all, may move together.

    Source: Liang & Zeger 1986 (cluster-robust variance).
    Proved by: tests/training/test_dpo.py::test_displacement_is_a_fall_of_the_chosen_while_the_margin_rises
    """
    if not (good.any() and (~good).any()):
        return Change(None, None, None, None)
    moved = (now - first).double()
    chosen, error = clustered_ratio(moved[good], torch.ones(int(good.sum()), dtype=torch.float64), prompt[good])
    means = moved[good].mean(), moved[~good].mean()
    influence = torch.where(good, (moved - means[0]) / good.sum(), (means[1] - moved) / (~good).sum())
    _, index = torch.unique(prompt, return_inverse=True)
    n = int(index.max()) + 1
    sums = torch.zeros(n, dtype=torch.float64).index_add_(0, index, influence)
    margin_error = float((n / (n - 1) * sums.square().sum()).sqrt()) if n > 1 else None
    return Change(chosen, error, float(means[0] - means[1]), margin_error)


def displaced(found: Change) -> str | None:
    """In words, with the numbers; None while the chosen answers hold, or nothing can be told from the noise."""
    if found.chosen is None or found.margin is None or found.chosen_error is None or found.margin_error is None:
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
