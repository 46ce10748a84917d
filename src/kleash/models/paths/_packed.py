"""packed: one row [prompt | c1 | … | cG] per prompt under a block mask; the prompt is computed once, both ways."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from kleash.errors import RunError
from kleash.models.anatomy import run_body
from kleash.models.paths._layout import fed_lengths, positions
from kleash.tensors import Rollout


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
    masks = _masks(packing, config, next(body.parameters()).dtype)
    out = run_body(body, packing.ids, masks, packing.positions)
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
