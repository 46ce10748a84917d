"""What a model's own layers keep, found by a few small forwards: no formula knows every architecture and precision.

What a pass keeps for its gradient is a sum of parts that grow with its tokens, with the pairs of a token and a key
that it may look at (a mask for each layer, or scores), and with the keys that its rows are held against, and of one
that does not grow (autocast's copies of the weights). Passes of a few sizes tell the parts apart, to the byte.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from kleash.models.paths import PathName, cache_kept, prefill
from kleash.models.policy import Policy
from kleash.tensors import Rollout

#: Tokens of a row in the smallest pass; the others have twice and four times as many.
TOKENS = 8
#: The same for a model with recurrent layers, some of which pad to chunks of so many.
CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes, of all layers together.

    token, pair, key: kept for a gradient, for each of these, without activation checkpointing; a row's own keys are
    among what its tokens keep. fixed: kept whatever goes through. position: of a token's keys and values in the
    sampler's cache. state: of a row there, whatever its length.
    """

    token: float
    pair: float
    key: float
    fixed: float
    position: float
    state: float


def kept(policy: Policy, *, shares: bool) -> Kept:
    """Measured. `shares`: whether completions can be held against a prompt's keys under gradients (path "cached").

    A layer with a sliding window is taken for one without: at most too much.
    """
    least = _least(policy.config, TOKENS if shares else CHUNK)
    lengths = [least, 2 * least, 4 * least]
    whole = [_saved(policy, _rollout(policy, n - 1, 2, rows=1), "plain") for n in lengths]
    fixed, token, pair = _parabola(lengths, whole)
    key = 0.0
    if shares:
        n, rows = least, 2
        there = _saved(policy, _rollout(policy, n, n + 1, rows=rows), "cached")
        prompts = fixed + 2 * (token * n + pair * n * n)
        key = (there - prompts - 2 * rows * (token * n + pair * n * 2 * n)) / (2 * rows * n)
    position, state = _cached(policy, lengths)
    return Kept(token=token, pair=pair, key=key, fixed=fixed, position=position, state=state)


def _least(config: Any, tokens: int) -> int:
    """So many, or what a recurrent layer pads to; four times as many must fit into the context."""
    chunks = [getattr(config, name, None) or 0 for name in ("chunk_size", "mamba_chunk_size")]
    contexts = [getattr(config, name, None) or sys.maxsize for name in ("max_position_embeddings", "max_seq_len")]
    return max(2, min(max(tokens, *chunks), min(contexts) // 4))


def _parabola(lengths: list[int], sizes: list[int]) -> tuple[float, float, float]:
    """What does not grow, and what grows with a row's tokens and their pairs, of passes of two rows."""
    powers = torch.tensor([[1.0, 2 * n, 2 * n * n] for n in lengths], dtype=torch.float64)
    fixed, token, pair = torch.linalg.solve(powers, torch.tensor(sizes, dtype=torch.float64)).tolist()
    return fixed, token, pair


def _saved(policy: Policy, rollout: Rollout, path: PathName) -> int:
    """Bytes that one pass keeps, each storage once, weights aside."""
    own = {t.untyped_storage().data_ptr() for t in (*policy.parameters(), *policy.buffers())}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), cache_kept(policy.body, recompute=False), saved_tensors_hooks(pack, lambda x: x):
        hidden = policy.hidden(rollout, path)
    del hidden
    return sum(found.values())


@torch.no_grad()
def _cached(policy: Policy, lengths: list[int]) -> tuple[float, float]:
    """Bytes of keys and values, or of states, that a token and a row add to a cache."""
    was = policy.training
    policy.eval()
    sizes: list[int] = []
    for n in lengths[:2]:
        rollout = _rollout(policy, n, 1, rows=1)
        with policy.autocast():
            _, cache = prefill(policy.body, policy.config, rollout.prompt_ids, rollout.prompt_mask)
        sizes.append(sum(t.nbytes for layer in cache.layers for t in vars(layer).values() if isinstance(t, Tensor)))
    policy.train(was)
    first, second = (size / 2 for size in sizes)
    slope = (second - first) / (lengths[1] - lengths[0])
    return slope, first - slope * lengths[0]


def _rollout(policy: Policy, prompt: int, length: int, *, rows: int) -> Rollout:
    """Two prompts, one of them shorter by a token so that there is a mask, and `rows` completions of each."""
    device, vocab = policy.device, policy.recipe.vocab

    def ids(*shape: int) -> Tensor:
        return (torch.arange(shape[0] * shape[1], device=device) % vocab).view(*shape)

    there = torch.ones(2, prompt, dtype=torch.bool, device=device)
    there[1, 0] = prompt == 1
    return Rollout(
        prompt_ids=ids(2, prompt),
        prompt_mask=there,
        completion_ids=ids(2 * rows, length),
        mask=torch.ones(2 * rows, length, dtype=torch.bool, device=device),
        group=torch.arange(2, device=device).repeat_interleave(rows),
        sampler=torch.zeros(2 * rows, length, device=device),
        truncated=torch.zeros(2 * rows, dtype=torch.bool, device=device),
    )
