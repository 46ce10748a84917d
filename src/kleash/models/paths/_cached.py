"""cached: the prompt's keys and values, computed once, then repeated for its completions."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from kleash.errors import RunError
from kleash.models.anatomy import keeps_states_only, run_body
from kleash.models.paths._layout import fed, positions
from kleash.models.paths._replay import cache_kept, fork
from kleash.tensors import Rollout


def prefill(
    body: nn.Module, config: Any, ids: Int[Tensor, "N P"], mask: Bool[Tensor, "N P"]
) -> tuple[Float[Tensor, "N H"], Any]:
    """The prompts, once: the hidden state that predicts the first token, and the cache of keys and values.

    Raises:
        RunError: the model did not fill the cache; the completions would run without their prompt.
    """
    cache = DynamicCache(config=config)
    out = run_body(body, ids.masked_fill(~mask, 0), mask, positions(mask), cache)
    _assert_kept(cache, ids.shape[1])
    return out.last_hidden_state[:, -1], cache


def _assert_kept(cache: Any, expected: int) -> None:
    # Activation checkpointing in train() sets the cache to None without an error; never assume.
    if keeps_states_only(cache) and cache.has_previous_state():
        return  # states have no length
    length = 0 if keeps_states_only(cache) else cache.get_seq_length()
    if length != expected:
        raise RunError(
            f"the model kept {length} of {expected} tokens in its cache, so completions would run without their "
            'prompt; use path="packed" or "plain"'
        )


def cached(body: nn.Module, config: Any, rollout: Rollout) -> Float[Tensor, "B T H"]:
    """The prompts first, then every completion against its prompt's keys and values.

    Raises:
        RunError: under gradients, a model that keeps a recurrent state.
    """
    with cache_kept(body, recompute=True):
        first, cache = prefill(body, config, rollout.prompt_ids, rollout.prompt_mask)
        first = first[rollout.group][:, None]
        if rollout.mask.shape[1] == 1:
            return first
        # the copy is of the lists only; what it refuses is a state, written in place, that no gradient goes through
        cache = fork(cache) if torch.is_grad_enabled() else cache
        return torch.cat([first, completions(body, rollout, cache)], 1)


def completions(body: nn.Module, rollout: Rollout, cache: Any) -> Float[Tensor, "B T1 H"]:
    """Hidden states of the fed tokens of a rollout's completions, against the prompts' cache, which is used up.

    Raises:
        RunError: the model did not add them to the cache.
    """
    cache.reorder_cache(rollout.group)  # row i becomes its prompt's: repeats, also in groups of unequal size
    P, T = rollout.prompt_ids.shape[1], rollout.completion_ids.shape[1]
    real = fed(rollout)
    mask = torch.cat([rollout.prompt_mask[rollout.group], real], 1)
    ids = rollout.completion_ids[:, : T - 1].masked_fill(~real, 0)
    out = run_body(body, ids, mask, positions(mask)[:, P:], cache)
    _assert_kept(cache, P + T - 1)
    return out.last_hidden_state
