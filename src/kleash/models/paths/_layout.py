"""Which tokens are fed and where they stand: what all ways through the model share."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from kleash.tensors import Rollout


def fed_lengths(mask: Bool[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """How many tokens of each completion go through the model: all before its last counted one."""
    steps = torch.arange(mask.shape[1], device=mask.device)
    return (mask * steps).amax(1)


def positions(mask: Bool[Tensor, "R L"]) -> Int[Tensor, "R L"]:
    """Position of each real token, 0 for the first; left padding gets 0 too (nobody looks at it)."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


def fed(rollout: Rollout) -> Bool[Tensor, "B T1"]:
    """True for the completion tokens that are fed, over the first T − 1 columns."""
    steps = torch.arange(rollout.mask.shape[1] - 1, device=rollout.mask.device)
    return steps < fed_lengths(rollout.mask)[:, None]
