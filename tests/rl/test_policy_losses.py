"""Ratios, surrogates and reductions against slow loops over plain numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.policy_losses import (
    clipped_surrogate,
    reduce_tokens,
    sequence_ratio,
    weighted_logprobs,
)

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]


@st.composite
def tokens(draw, columns: int = 2):
    """`columns` tables of numbers [B, T] and a mask with holes."""
    B, T = draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def table(values):
        return draw(st.lists(st.lists(values, min_size=T, max_size=T), min_size=B, max_size=B))

    return *(table(st.floats(-4, 0)) for _ in range(columns)), table(st.booleans())


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def close(found, truth) -> None:
    torch.testing.assert_close(found, double(truth), rtol=EXACT, atol=EXACT)


@given(case=tokens())
@settings(deadline=None)
def test_sequence_ratio_equals_slow_loop(case):
    logprobs, old, mask = case
    slow = []
    for new_row, old_row, mask_row in zip(logprobs, old, mask, strict=True):
        counted = [(new, was) for new, was, counts in zip(new_row, old_row, mask_row, strict=True) if counts]
        product = math.prod(math.exp(new) / math.exp(was) for new, was in counted)
        slow.append([product ** (1 / len(counted)) if counted else 1.0] * len(new_row))
    close(sequence_ratio(double(logprobs), double(old), torch.tensor(mask)), slow)


def test_the_gradient_of_a_sequence_ratio_is_shared_by_its_tokens():
    live = double([[-1.0, -2.0, -9.0]]).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    (gradient,) = torch.autograd.grad(sequence_ratio(live, live.detach(), mask)[0, 0], live)
    close(gradient, [[0.5, 0.5, 0.0]])  # s · 1/|y| for each counted token


#: ratio, advantage, clip → loss, gradient by the ratio, clipped. Written from eq. 7 of the PPO paper, eq. 10 of DAPO's.
BOTH, HIGHER = (0.2, 0.2), (0.2, 0.28)
CASES = [
    (1.0, 2.0, BOTH, -2.0, -2.0, False),  # unmoved
    (1.5, 2.0, BOTH, -2.4, 0.0, True),  # good token, moved up enough
    (0.5, 2.0, BOTH, -1.0, -2.0, False),  # good token, moved down: pulled back up
    (1.5, -2.0, BOTH, 3.0, 2.0, False),  # bad token, moved up: pulled back down
    (0.5, -2.0, BOTH, 1.6, 0.0, True),  # bad token, moved down enough
    (1.5, 0.0, BOTH, 0.0, 0.0, False),  # no credit
    (9.0, 2.0, None, -18.0, -2.0, False),
    (9.0, -2.0, None, 18.0, 2.0, False),
    (1.25, 2.0, HIGHER, -2.5, -2.0, False),  # between the two upper bounds: still pushed up
    (1.25, 2.0, BOTH, -2.4, 0.0, True),
    (1.5, 2.0, HIGHER, -2.56, 0.0, True),
    (0.75, -2.0, HIGHER, 1.6, 0.0, True),  # the lower bound stays
]


@pytest.mark.parametrize(("ratio", "advantage", "clip", "loss", "slope", "clipped"), CASES)
def test_clipped_surrogate_by_cases(ratio, advantage, clip, loss, slope, clipped):
    live = double([[ratio]]).requires_grad_()
    found = clipped_surrogate(live, double([[advantage]]), clip)
    close(found.loss.detach(), [[loss]])
    (gradient,) = torch.autograd.grad(found.loss.sum(), live)
    close(gradient, [[slope]])
    assert found.clipped.tolist() == [[clipped]]


#: ratio, advantage, clip → the gradient by the log-prob, bounded. Written from eq. 4–5 of the CISPO paper.
WEIGHTS = [
    (1.0, 2.0, (1.0, 4.0), -2.0, False),
    (3.0, 2.0, (1.0, 4.0), -6.0, False),
    (9.0, 2.0, (1.0, 4.0), -10.0, True),  # bounded, and alive where PPO's would be zero
    (9.0, -2.0, (1.0, 4.0), 10.0, True),
    (0.01, -2.0, (1.0, 4.0), 0.02, False),  # no lower bound
    (0.01, -2.0, (0.5, 4.0), 1.0, True),
    (9.0, 2.0, None, -18.0, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "clip", "slope", "clipped"), WEIGHTS)
def test_weighted_logprobs_by_cases(ratio, advantage, clip, slope, clipped):
    logprob = double([[-0.7]]).requires_grad_()
    live_ratio = ratio * (logprob - logprob.detach()).exp()  # as in training: its gradient must not count
    found = weighted_logprobs(live_ratio, logprob, double([[advantage]]), clip)
    close(found.loss.detach(), [[slope * -0.7]])
    (gradient,) = torch.autograd.grad(found.loss.sum(), logprob)
    close(gradient, [[slope]])
    assert found.clipped.tolist() == [[clipped]]


@pytest.mark.parametrize("length", ["constant", "sequence_mean", "token_mean"])
@given(case=tokens(columns=1))
@settings(deadline=None)
def test_reduce_tokens_equals_slow_loop(case, length):
    per_token, mask = case
    rows = [
        [x for x, counts in zip(row, row_mask, strict=True) if counts]
        for row, row_mask in zip(per_token, mask, strict=True)
    ]
    sequences, tokens_, constant = len(rows) + 2, sum(map(len, rows)) + 3, 7  # totals of a larger minibatch
    slow = {
        "constant": sum(map(sum, rows)) / (sequences * constant),
        "token_mean": sum(map(sum, rows)) / tokens_,
        "sequence_mean": sum(sum(row) / len(row) for row in rows if row) / sequences,
    }[length]
    found = reduce_tokens(
        double(per_token), torch.tensor(mask), length, sequences=sequences, tokens=tokens_, constant=constant
    )
    close(found, slow)


@pytest.mark.parametrize("length", ["constant", "sequence_mean", "token_mean"])
def test_reduced_parts_add_up_to_the_whole(length):
    x, mask = torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 4) < 0.7
    totals = {"sequences": 6, "tokens": int(mask.sum()), "constant": 9}
    whole = reduce_tokens(x, mask, length, **totals)
    parts = sum(reduce_tokens(x[i : i + 2], mask[i : i + 2], length, **totals) for i in (0, 2, 4))
    torch.testing.assert_close(whole, parts, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("length", ["constant", "sequence_mean", "token_mean"])
def test_reduction_ignores_what_the_mask_hides(length, garbage):
    mask = torch.tensor([[True, False], [False, False]])
    dirty = double([[2.0, garbage], [garbage, garbage]]).requires_grad_()
    value = reduce_tokens(dirty, mask, length, sequences=2, tokens=1, constant=4)
    close(value.detach(), {"constant": 0.25, "sequence_mean": 1.0, "token_mean": 2.0}[length])
    (gradient,) = torch.autograd.grad(value, dirty)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()
