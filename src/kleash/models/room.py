"""Keys and values of rows that are being decoded, in memory laid out for tokens to come.

transformers' DynamicLayer joins old and new by `torch.cat`, which copies all that is kept at every token: with long
prompts that costs more than the model. Here a token is written where it belongs, a prompt is copied once for each of
its completions, and a row that has ended is overwritten by one from the end.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

#: Tokens after the prompt that there is room for at first; it doubles when they are used up.
SPACE = 64


class Room(CacheLayerMixin):
    """One layer's keys and values: `keys` and `values` are views of what has been written."""

    is_sliding = False

    def __init__(self, prompts: Any, group_size: int, limit: int) -> None:
        """Repeats a layer filled with N prompts for N·group_size rows, none of which will exceed `limit` tokens."""
        super().__init__()
        self.limit, self.length = limit, prompts.get_seq_length()
        capacity = min(limit, self.length + SPACE)
        self._keys, self._values = (_repeated(x, group_size, capacity) for x in (prompts.keys, prompts.values))
        self.is_initialized = True
        self._show(len(self._keys))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: a room is made from a layer that is filled."""

    def update(
        self, key_states: Float[Tensor, "b h n D"], value_states: Float[Tensor, "b h n E"], *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        rows, start, self.length = len(key_states), self.length, self.length + key_states.shape[-2]
        if self.length > self._keys.shape[-2]:
            capacity = max(self.length, min(self.limit, 2 * start))
            self._keys, self._values = (_repeated(x[:rows, :, :start], 1, capacity) for x in (self._keys, self._values))
        self._keys[:rows, :, start : self.length] = key_states
        self._values[:rows, :, start : self.length] = value_states
        return self._show(rows)

    def reorder_cache(self, beam_idx: Int[Tensor, " b"]) -> None:
        """Row i becomes the old row beam_idx[i], and the rest is forgotten; a row that stays is not copied."""
        moved = (beam_idx != torch.arange(len(beam_idx), device=beam_idx.device)).nonzero()[:, 0]
        for kept in (self._keys, self._values):
            kept[moved, :, : self.length] = kept[beam_idx[moved], :, : self.length]
        self._show(len(beam_idx))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return self.limit

    def _show(self, rows: int) -> tuple[Tensor, Tensor]:
        shown = self._keys[:rows, :, : self.length], self._values[:rows, :, : self.length]
        self.keys, self.values = shown
        return shown


def _repeated(x: Float[Tensor, "N h L D"], times: int, capacity: int) -> Float[Tensor, "B h C D"]:
    """Each row so many times, and room for `capacity` tokens."""
    rows, heads, length, width = x.shape
    room = x.new_empty(rows, times, heads, capacity, width)
    room[..., :length, :] = x[:, None]
    return room.flatten(0, 1)


def make_room(cache: Any, prompts: int, group_size: int, limit: int) -> None:
    """The cache of N prompts becomes that of their completions, up to `limit` tokens with the prompt.

    A layer of another kind (a sliding window, a recurrent state) keeps its own form: those do not grow with the text.
    """
    repeats: Any = torch.arange(prompts).repeat_interleave(group_size)
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            cache.layers[i] = Room(layer, group_size, limit)
        else:
            layer.reorder_cache(repeats)


def closed_up(live: Bool[Tensor, " b"]) -> Int[Tensor, " n"]:
    """The order in which n live rows stand first and few move: gaps are filled from the end."""
    at = live.nonzero()[:, 0]
    order = torch.arange(len(at), device=live.device)
    order[~live[: len(at)]] = at[at >= len(at)]
    return order
