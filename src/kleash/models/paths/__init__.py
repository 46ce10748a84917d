"""Three exact ways through the model that give the hidden state predicting each completion token.

A path takes the model without its head (`body`) and a rollout and returns [B,T,H]: at (i, t) the final hidden state
of the token before completion token t. The last token of a completion predicts nothing and is never fed. Positions are
always explicit, 0 at the first real prompt token, so that padding changes nothing.

`packed`  one row [prompt | c1 | … | cG] per prompt under a block mask: the prompt is computed once, both ways.
`cached`  the prompt's keys and values, computed once, then repeated for its completions.
`plain`   the prompt repeated for every completion: the oracle, and the way for models that cannot share.
"""

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from kleash.models.paths._cached import cached, prefill
from kleash.models.paths._layout import fed_lengths, positions
from kleash.models.paths._packed import Packing, block_mask, pack, packed
from kleash.models.paths._plain import plain
from kleash.tensors import Rollout

PathName = Literal["packed", "cached", "plain"]

PATHS: dict[PathName, Callable[[nn.Module, Any, Rollout], Float[Tensor, "B T H"]]] = {
    "packed": packed,
    "cached": cached,
    "plain": plain,
}

__all__ = [
    "PATHS",
    "Packing",
    "PathName",
    "block_mask",
    "cached",
    "fed_lengths",
    "pack",
    "packed",
    "plain",
    "positions",
    "prefill",
]
