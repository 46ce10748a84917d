"""Three exact ways through the model that give the hidden state predicting each completion token.

A path takes the model without its head (`body`) and a rollout and returns [B,T,H]: at (i, t) the final hidden state
of the token before completion token t. The last token of a completion predicts nothing and is never fed. Positions are
always explicit, 0 at the first real prompt token, so that padding changes nothing.

`packed`  one row [prompt | c1 | … | cG] per prompt under a block mask: the prompt is computed once, both ways.
`cached`  the prompt's keys and values, computed once, then repeated for its completions.
`plain`   the prompt repeated for every completion: the oracle, and the way for models that cannot share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from kleash.errors import RunError
from kleash.tensors import Rollout

PathName = Literal["packed", "cached", "plain"]


def fed_lengths(mask: Bool[Tensor, "B T"]) -> Int[Tensor, " B"]:
    """How many tokens of each completion go through the model: all before its last counted one."""
    steps = torch.arange(mask.shape[1], device=mask.device)
    return (mask * steps).amax(1)


def positions(mask: Bool[Tensor, "R L"]) -> Int[Tensor, "R L"]:
    """Position of each real token, 0 for the first; left padding gets 0 too (nobody looks at it)."""
    return (mask.long().cumsum(1) - 1).clamp(min=0)


# ── plain ───────────────────────────────────────────────────────────────────────────────────────────────


def plain(body: nn.Module, config: Any, rollout: Rollout) -> Float[Tensor, "B T H"]:
    """Each row on its own: its prompt, then its completion."""
    P, T = rollout.prompt_ids.shape[1], rollout.completion_ids.shape[1]
    fed = _fed(rollout)
    mask = torch.cat([rollout.prompt_mask[rollout.group], fed], 1)
    ids = torch.cat([rollout.prompt_ids[rollout.group], rollout.completion_ids[:, : T - 1]], 1)
    out = body(
        input_ids=ids.masked_fill(~mask, 0),
        attention_mask=mask.long(),
        position_ids=positions(mask),
        use_cache=False,
    )
    return out.last_hidden_state[:, P - 1 :]


def _fed(rollout: Rollout) -> Bool[Tensor, "B T1"]:
    """True for the completion tokens that are fed, over the first T − 1 columns."""
    steps = torch.arange(rollout.mask.shape[1] - 1, device=rollout.mask.device)
    return steps < fed_lengths(rollout.mask)[:, None]


# ── cached ──────────────────────────────────────────────────────────────────────────────────────────────


def prefill(
    body: nn.Module, config: Any, ids: Int[Tensor, "N P"], mask: Bool[Tensor, "N P"]
) -> tuple[Float[Tensor, "N H"], Any]:
    """The prompts, once: the hidden state that predicts the first token, and the cache of keys and values.

    Raises:
        RunError: the model did not fill the cache; the completions would run without their prompt.
    """
    cache = DynamicCache(config=config)
    out = body(
        input_ids=ids.masked_fill(~mask, 0),
        attention_mask=mask.long(),
        position_ids=positions(mask),
        cache=cache,
        use_cache=True,
    )
    _assert_length(cache, ids.shape[1])
    return out.last_hidden_state[:, -1], cache


def _assert_length(cache: Any, expected: int) -> None:
    # Activation checkpointing in train() sets the cache to None without an error; never assume.
    if (length := cache.get_seq_length()) != expected:
        raise RunError(
            f"the model kept {length} of {expected} tokens in its cache, so completions would run without their "
            'prompt; use path="packed" (the cached path cannot run under activation checkpointing with gradients)'
        )


def cached(body: nn.Module, config: Any, rollout: Rollout) -> Float[Tensor, "B T H"]:
    """The prompts first, then every completion against its prompt's keys and values."""
    first, cache = prefill(body, config, rollout.prompt_ids, rollout.prompt_mask)
    first = first[rollout.group][:, None]
    P, T = rollout.prompt_ids.shape[1], rollout.completion_ids.shape[1]
    if T == 1:
        return first
    cache.reorder_cache(rollout.group)  # row i becomes its prompt's: repeats, also in groups of unequal size
    fed = _fed(rollout)
    mask = torch.cat([rollout.prompt_mask[rollout.group], fed], 1)
    out = body(
        input_ids=rollout.completion_ids[:, : T - 1].masked_fill(~fed, 0),
        attention_mask=mask.long(),
        position_ids=positions(mask)[:, P:],
        cache=cache,
        use_cache=True,
    )
    _assert_length(cache, P + T - 1)
    return torch.cat([first, out.last_hidden_state], 1)


# ── packed ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Packing:
    """One row per prompt: its tokens, then those of its completions, end to end.

    `segment` is −1 for padding, 0 for the prompt, i + 1 for row i of the rollout. `source` is the flat index, in
    N·L, of the hidden state that predicts completion token t of row i (that of the prompt's end where nothing does).
    """

    ids: Int[Tensor, "N L"]
    positions: Int[Tensor, "N L"]
    segment: Int[Tensor, "N L"]
    source: Int[Tensor, "B T"]


def pack(rollout: Rollout) -> Packing:
    """Lays every prompt group out as one row; completions keep only the tokens that are fed."""
    (N, P), (B, T) = rollout.prompt_ids.shape, rollout.completion_ids.shape
    device, group = rollout.group.device, rollout.group
    length = fed_lengths(rollout.mask)
    per_group = length.new_zeros(N).index_add(0, group, length)
    L = P + int(per_group.max())
    start = P + length.cumsum(0) - length - (per_group.cumsum(0) - per_group)[group]  # [B] column of its first token
    steps = torch.arange(T - 1, device=device)
    fed = steps < length[:, None]
    at = ((group * L + start)[:, None] + steps)[fed]  # flat places of the fed tokens

    def row(prompt: Tensor, padding: int, completion: Tensor) -> Tensor:
        flat = torch.full((N, L), padding, device=device)
        flat[:, :P] = torch.where(rollout.prompt_mask, prompt, padding)
        return flat.view(-1).index_copy(0, at, completion[fed]).view(N, L)

    n_prompt = rollout.prompt_mask.sum(1)
    end = (group * L + P - 1)[:, None]
    after = (group * L + start)[:, None] + steps
    return Packing(
        ids=row(rollout.prompt_ids, 0, rollout.completion_ids[:, : T - 1]),
        positions=row(positions(rollout.prompt_mask), 0, n_prompt[group][:, None] + steps),
        segment=row(
            torch.zeros_like(rollout.prompt_ids), -1, torch.arange(1, B + 1, device=device)[:, None].expand(B, T - 1)
        ),
        source=torch.cat([end, torch.where(fed, after, end)], 1),
    )


def block_mask(packing: Packing, window: int | None = None) -> Bool[Tensor, "N 1 L L"]:
    """Who may look at whom: a token at its prompt and at the earlier tokens of its own completion.

    Padding looks at itself only (a row of the softmax must not be empty). `window`: no further back than that many
    positions, itself included.
    """
    query, key = packing.segment[:, :, None], packing.segment[:, None, :]
    L = packing.segment.shape[1]
    earlier = torch.ones(L, L, dtype=torch.bool, device=query.device).tril()
    allowed = ((key == 0) | (key == query)) & (key >= 0) & earlier
    if window is not None:
        allowed &= packing.positions[:, :, None] - packing.positions[:, None, :] < window
    allowed |= torch.eye(L, dtype=torch.bool, device=query.device)
    return allowed[:, None]


def packed(body: nn.Module, config: Any, rollout: Rollout) -> Float[Tensor, "B T H"]:
    """One forward over rows [prompt | c1 | … | cG]; works with activation checkpointing."""
    packing = pack(rollout)
    out = body(
        input_ids=packing.ids,
        attention_mask=_masks(packing, config, next(body.parameters()).dtype),
        position_ids=packing.positions,
        use_cache=False,
    )
    return out.last_hidden_state.flatten(0, 1)[packing.source]


def _masks(packing: Packing, config: Any, dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
    """The block mask in the form the model takes: one, or one per kind of layer where kinds differ."""
    kinds = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)
    if not kinds:  # Mistral: a window, if any, on every layer
        return _in_form(block_mask(packing, window), config, dtype)
    if unknown := kinds - {"full_attention", "sliding_attention"}:
        raise RunError(f'the packed path knows no block mask for layers of kind {sorted(unknown)}; use path="plain"')
    masks = {kind: block_mask(packing, window if kind == "sliding_attention" else None) for kind in sorted(kinds)}
    formed = {kind: _in_form(mask, config, dtype) for kind, mask in masks.items()}
    return formed if len(formed) > 1 else next(iter(formed.values()))


def _in_form(mask: Bool[Tensor, "N 1 L L"], config: Any, dtype: torch.dtype) -> Tensor:
    match config._attn_implementation:
        case "sdpa":
            return mask
        case "eager":  # added to the scores
            return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
        case other:
            raise RunError(f'the packed path needs attention "sdpa" or "eager", and this model runs {other!r}')


PATHS: dict[PathName, Callable[[nn.Module, Any, Rollout], Float[Tensor, "B T H"]]] = {
    "packed": packed,
    "cached": cached,
    "plain": plain,
}
