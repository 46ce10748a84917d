"""Pairs of texts: rows 0, 2, 4 … are the preferred answers, rows 1, 3, 5 … the others; a row's sum over its tokens.

N pairs are B = 2N rows, as groups of two that share their prompt. Log-probs are in nats, in float32 (float64 stays).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.masked import require_bool


class Sides(NamedTuple):
    """A number of each text of a pair: the preferred answer's and the other's."""

    chosen: Float[Tensor, " N"]
    rejected: Float[Tensor, " N"]

    @property
    def margin(self) -> Float[Tensor, " N"]:
        return self.chosen - self.rejected


class PairLoss(NamedTuple):
    """loss: of each pair, live, to be averaged over pairs. rewards: the implicit ones of both texts, detached, in the
    loss's own scale (its docstring says which). bounded: texts whose value was continued linearly or kept off a pole.
    """

    loss: Float[Tensor, " N"]
    rewards: Sides
    bounded: int = 0


def sums(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Sides:
    """Σ_t of each text, over the tokens that count. What is under False changes nothing.

    Source: the definition.
    Proved by: tests/rl/test_pair_sums.py::test_equals_a_slow_loop
    """
    return _sides(_counted(x, mask).sum(1))


def means(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Sides:
    """The mean over the tokens that count of each text; 0 for a text without any.

    Source: the definition.
    Proved by: tests/rl/test_pair_sums.py::test_equals_a_slow_loop
    """
    lengths = mask.sum(1).clamp_min(1)  # a text without tokens has sum 0
    return _sides(_counted(x, mask).sum(1) / lengths)


def desensitised_sums(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], alpha: float) -> Sides:
    """Σ_t with the weight alpha on tokens beyond the length of the pair's shorter text: 1 is the sum, 0 cuts it there.

    Source: Liu et al. 2024 (LD-DPO), arXiv 2409.06411.
    Proved by: tests/rl/test_pair_sums.py::test_equals_a_slow_loop
    """
    lengths = mask.sum(1).reshape(-1, 2)
    shorter = lengths.min(1).values.repeat_interleave(2)
    x, shared = _counted(x, mask), mask.cumsum(1) <= shorter[:, None]
    return _sides(torch.where(shared, x, alpha * x).sum(1))


def _counted(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    require_bool(mask)
    x = x if x.dtype == torch.float64 else x.float()
    return torch.where(mask, x, 0.0)


def _sides(x: Float[Tensor, " B"]) -> Sides:
    return Sides(x[0::2], x[1::2])
