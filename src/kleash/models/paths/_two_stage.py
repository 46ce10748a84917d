"""two_stage: the least memory. The prompt once, then its completions a few rows at a time, down to one.

The rows' activations are not kept: in the backward pass each part runs again, alone, and leaves its gradient on the
prompt's keys and values; when the last part is done, one backward pass goes through the prompt. What is kept over the
whole pass is the prompt's graph and [B,T,H] hidden states. The price is one more forward of the completions.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.models.paths._cached import completions, prefill
from kleash.models.paths._layout import in_parts
from kleash.models.paths._replay import cache_kept, fork
from kleash.tensors import Rollout


def two_stage(body: nn.Module, config: Any, rollout: Rollout, rows: int | None = None) -> Float[Tensor, "B T H"]:
    """`rows` completions at a time (None: all) against their prompts' keys and values.

    Raises:
        RunError: the model keeps more than keys and values of its prompt.
    """
    with cache_kept(body, recompute=True):
        first, cache = prefill(body, config, rollout.prompt_ids, rollout.prompt_mask)
    first = first[rollout.group][:, None]
    if rollout.mask.shape[1] == 1:
        return first

    def run(part: Rollout) -> Float[Tensor, "R t H"]:
        with cache_kept(body, recompute=False):
            return completions(body, part, fork(cache))

    return torch.cat([first, in_parts(rollout, rows, rollout.mask.shape[1] - 1, run)], 1)
