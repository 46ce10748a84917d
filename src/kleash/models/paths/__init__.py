"""Four exact ways through the model that give the hidden state predicting each completion token.

A path takes the model without its head (`body`) and a rollout and returns [B,T,H]: at (i, t) the final hidden state
of the token before completion token t. The last token of a completion predicts nothing and is never fed. Positions are
always explicit, 0 at the first real prompt token, so that padding changes nothing.

`packed`     one row [prompt | c1 | … | cG] per prompt under a block mask: the prompt is computed once, both ways.
`cached`     the prompt's keys and values, computed once, then repeated for its completions.
`two_stage`  the same with the completions a few rows at a time, down to one: the least memory.
`plain`      the prompt repeated for every completion: the oracle, and the way for models that cannot share.
"""

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from kleash.models.paths._cached import cached, prefill
from kleash.models.paths._layout import fed_lengths, positions
from kleash.models.paths._packed import Packing, block_mask, pack, packed
from kleash.models.paths._plain import plain
from kleash.models.paths._replay import cache_kept
from kleash.models.paths._two_stage import two_stage
from kleash.tensors import Rollout

PathName = Literal["packed", "cached", "two_stage", "plain"]

PATHS: dict[PathName, Callable[[nn.Module, Any, Rollout], Float[Tensor, "B T H"]]] = {
    "packed": packed,
    "cached": cached,
    "two_stage": two_stage,
    "plain": plain,
}


def hidden_states(
    body: nn.Module, config: Any, rollout: Rollout, path: PathName, rows: int | None
) -> Float[Tensor, "B T H"]:
    """The final hidden state that predicts each completion token, by one path.

    `rows`: completions that go through together, for the two paths that can take a few at a time. Whatever it is,
    the result is that of all at once, and so is its gradient.
    """
    if rows is None:
        return PATHS[path](body, config, rollout)
    assert path in ("two_stage", "plain"), "a plan says so (models/plan.py)"
    return (two_stage if path == "two_stage" else plain)(body, config, rollout, rows)


__all__ = [
    "PATHS",
    "Packing",
    "PathName",
    "block_mask",
    "cache_kept",
    "cached",
    "fed_lengths",
    "hidden_states",
    "pack",
    "packed",
    "plain",
    "positions",
    "prefill",
    "two_stage",
]
