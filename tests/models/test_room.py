"""The room for keys and values against transformers' own growing layer, and what is left of it when rows end."""

import itertools
from typing import Any

import pytest
import torch
from tests.models import build
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kleash.models.paths import prefill
from kleash.models.room import SPACE, Room, closed_up, make_room

N, G, P, HEADS = 2, 3, 5, 2


def draw(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, which need not have the same width."""
    return torch.randn(rows, HEADS, length, 4), torch.randn(rows, HEADS, length, 6)


@pytest.mark.parametrize("sizes", [[1] * 7, [1] * (3 * SPACE), [4, 1, SPACE, 1, 2 * SPACE]])
def test_equals_the_layer_that_copies(sizes: list[int]) -> None:
    """After every token, and when rows end, change places, and more tokens come than there was room for at first."""
    torch.manual_seed(0)
    theirs = DynamicLayer()
    theirs.update(*draw(N, P))
    ours = Room(theirs, G, P + sum(sizes))
    theirs.reorder_cache(torch.arange(N).repeat_interleave(G))
    leave = {2: torch.tensor([0, 5, 2, 3]), 3: torch.tensor([3, 1]), 4: torch.tensor([0])}
    rows = N * G
    for step, size in enumerate(sizes):
        if step in leave:
            rows = len(leave[step])
            ours.reorder_cache(leave[step])
            theirs.reorder_cache(leave[step])
        assert ours.get_mask_sizes(size) == theirs.get_mask_sizes(size)
        new = draw(rows, size)
        for mine, other in zip(ours.update(*new), theirs.update(*new), strict=True):
            assert torch.equal(mine, other)
        assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
        assert ours.get_seq_length() == theirs.get_seq_length()
    assert ours.get_seq_length() == ours.get_max_length()


def test_a_token_moves_no_memory() -> None:
    layer = DynamicLayer()
    layer.update(*draw(N, P))
    room = Room(layer, G, P + SPACE)
    where = room.keys.data_ptr(), room.values.data_ptr()
    for _ in range(SPACE):
        room.update(*draw(N * G, 1))
    assert (room.keys.data_ptr(), room.values.data_ptr()) == where


@pytest.mark.parametrize(
    ("kind", "changed", "kinds"),
    [
        ("llama", {}, [Room, Room]),
        ("mistral", {}, [DynamicSlidingWindowLayer] * 2),
        (
            "qwen3",
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True},
            [DynamicSlidingWindowLayer, Room],
        ),
    ],
)
def test_layers_with_a_window_keep_their_own_form(kind: str, changed: dict[str, Any], kinds: list[type]) -> None:
    policy = build.policy(kind, **changed)
    ids = torch.arange(1, 1 + N * P).view(N, P)
    _, cache = prefill(policy.body, policy.config, ids, torch.ones_like(ids, dtype=torch.bool))
    make_room(cache, N, G, P + 4)
    assert [type(layer) for layer in cache.layers] == kinds
    assert all(len(layer.keys) == N * G for layer in cache.layers)


def test_gaps_are_filled_from_the_end() -> None:
    """Every pattern of six rows: exactly the live ones remain, and none moves that could stay."""
    for pattern in itertools.product([False, True], repeat=6):
        live = torch.tensor(pattern)
        order = closed_up(live).tolist()
        assert sorted(order) == [i for i, alive in enumerate(pattern) if alive]
        assert all(row == at for at, row in enumerate(order) if pattern[at])
