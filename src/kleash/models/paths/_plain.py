"""plain: the prompt repeated for every completion; the oracle, and the way for models that cannot share."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.models.anatomy import run_body
from kleash.models.paths._layout import fed, in_parts, positions
from kleash.tensors import Rollout


def plain(body: nn.Module, config: Any, rollout: Rollout, rows: int | None = None) -> Float[Tensor, "B T H"]:
    """Each row on its own: its prompt, then its completion.

    `rows`: so many at a time, each part run again in the backward pass instead of kept.
    """
    if rows is None:
        return _whole(body, rollout)
    return in_parts(rollout, rows, rollout.mask.shape[1], lambda part: _whole(body, part))


def _whole(body: nn.Module, rollout: Rollout) -> Float[Tensor, "B T H"]:
    P, T = rollout.prompt_ids.shape[1], rollout.completion_ids.shape[1]
    real = fed(rollout)
    mask = torch.cat([rollout.prompt_mask[rollout.group], real], 1)
    ids = torch.cat([rollout.prompt_ids[rollout.group], rollout.completion_ids[:, : T - 1]], 1)
    out = run_body(body, ids.masked_fill(~mask, 0), mask, positions(mask))
    return out.last_hidden_state[:, P - 1 :]
