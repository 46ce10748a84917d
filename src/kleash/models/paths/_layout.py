"""Which tokens are fed and where they stand: what all ways through the model share."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from kleash.models.paths._replay import recomputed
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


def in_parts(
    rollout: Rollout, rows: int | None, width: int, run: Callable[[Rollout], Float[Tensor, "R t H"]]
) -> Float[Tensor, "B W H"]:
    """`run` over `rows` rows at a time (None: all), each part trimmed to its longest completion; 0 up to `width`.

    A part keeps all prompts, and its `group` counts from the first of them. A part's activations are computed again
    in the backward pass instead of kept, so that only one part's are ever there.
    """
    B, found = rollout.mask.shape[0], []
    for start in range(0, B, rows or B):
        some = slice(start, start + (rows or B))
        t = max(2, int(fed_lengths(rollout.mask[some]).max()) + 1)
        part = replace(
            rollout,
            completion_ids=rollout.completion_ids[some, :t],
            mask=rollout.mask[some, :t],
            group=rollout.group[some],
            sampler=rollout.sampler[some, :t],
            truncated=rollout.truncated[some],
        )
        hidden = recomputed(lambda _, part=part: run(part), part.completion_ids)
        found.append(pad(hidden, (0, 0, 0, width - hidden.shape[1])))
    return torch.cat(found)
