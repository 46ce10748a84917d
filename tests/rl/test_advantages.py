"""Advantages against slow loops over plain numbers, and the invariances they must have."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.advantages import group_std, group_sum, leave_one_out, leave_one_out_alive

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
numbers = st.floats(-5, 5)


@st.composite
def groups(draw):
    """(score, scored, group): groups of 1 to 4 rows, some unscored."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    n = sum(sizes)
    score = draw(st.lists(numbers, min_size=n, max_size=n))
    scored = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return score, scored, [g for g, size in enumerate(sizes) for _ in range(size)]


@st.composite
def tokens(draw):
    """(x, mask, group) of shape [B, T]; the mask has holes."""
    _, _, group = draw(groups())
    T = draw(st.integers(1, 4))
    rows = st.lists(st.lists(numbers, min_size=T, max_size=T), min_size=len(group), max_size=len(group))
    masks = st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=len(group), max_size=len(group))
    return draw(rows), draw(masks), group


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def close(found: torch.Tensor, truth: list) -> None:
    torch.testing.assert_close(found, double(truth), rtol=EXACT, atol=EXACT)


@given(tokens())
@settings(deadline=None)
def test_group_sum_equals_slow_loop(case):
    x, _, group = case
    rows = range(len(group))
    slow = [[sum(x[j][t] for j in rows if group[j] == group[i]) for t in range(len(x[0]))] for i in rows]
    close(group_sum(double(x), torch.tensor(group)), slow)
    close(group_sum(double(x)[:, 0], torch.tensor(group)), [row[0] for row in slow])


def slow_leave_one_out(score, scored, group):
    out = []
    for i, own in enumerate(score):
        others = [score[j] for j in range(len(score)) if j != i and group[j] == group[i] and scored[j]]
        out.append(own - sum(others) / len(others) if scored[i] and others else 0.0)
    return out


@given(groups())
@settings(deadline=None)
def test_leave_one_out_equals_slow_loop(case):
    score, scored, group = case
    found = leave_one_out(double(score), torch.tensor(scored), torch.tensor(group))
    close(found, slow_leave_one_out(score, scored, group))


@given(groups(), st.sampled_from(GARBAGE), st.lists(numbers, min_size=4, max_size=4))
@settings(deadline=None)
def test_leave_one_out_ignores_unscored_values_and_shifts_of_a_group(case, garbage, shift):
    score, scored, group = case
    before = leave_one_out(double(score), torch.tensor(scored), torch.tensor(group))
    dirty = [s + shift[g] if ok else garbage for s, ok, g in zip(score, scored, group, strict=True)]
    after = leave_one_out(double(dirty), torch.tensor(scored), torch.tensor(group))
    torch.testing.assert_close(after, before, rtol=EXACT, atol=EXACT)


@given(groups())
@settings(deadline=None)
def test_leave_one_out_is_the_centred_score_over_c(case):
    """R_i − mean(R) = (1 − 1/G)(R_i − b_i): the identity on which GRPO rests."""
    score, _, group = case
    everyone = torch.ones(len(score), dtype=torch.bool)
    found = leave_one_out(double(score), everyone, torch.tensor(group))
    for i, (own, g) in enumerate(zip(score, group, strict=True)):
        members = [s for s, other in zip(score, group, strict=True) if other == g]
        centred = own - math.fsum(members) / len(members)
        assert math.isclose((1 - 1 / len(members)) * float(found[i]), centred, abs_tol=EXACT)


@given(tokens(), st.booleans())
@settings(deadline=None)
def test_leave_one_out_alive_equals_slow_loop(case, weighed):
    x, mask, group = case
    weight = [[0.5 + i + 2 * t for t in range(len(x[0]))] for i in range(len(x))]
    slow = []
    for i, row in enumerate(x):
        out = []
        for t, own in enumerate(row):
            others = [x[j][t] for j in range(len(x)) if j != i and group[j] == group[i] and mask[j][t]]
            baseline = sum(others) / len(others) if others else 0.0
            out.append(own - (weight[i][t] if weighed else 1.0) * baseline if mask[i][t] else 0.0)
        slow.append(out)
    found = leave_one_out_alive(double(x), torch.tensor(mask), torch.tensor(group), double(weight) if weighed else None)
    torch.testing.assert_close(found, double(slow), rtol=EXACT, atol=EXACT)


@given(tokens(), st.sampled_from(GARBAGE))
@settings(deadline=None)
def test_leave_one_out_alive_ignores_what_the_mask_hides(case, garbage):
    x, mask, group = case
    hidden = torch.where(torch.tensor(mask), double(x), garbage)
    before = leave_one_out_alive(double(x), torch.tensor(mask), torch.tensor(group))
    assert torch.equal(before, leave_one_out_alive(hidden, torch.tensor(mask), torch.tensor(group)))


def test_a_baseline_of_the_others_is_independent_of_the_own_token():
    """Unbiased: what is subtracted from row i does not move when row i does."""
    x, mask, group = torch.rand(4, 3, dtype=torch.float64), torch.ones(4, 3, dtype=torch.bool), torch.zeros(4).long()
    moved = x.clone()
    moved[1] += 7.0
    baseline = x - leave_one_out_alive(x, mask, group)
    after = moved - leave_one_out_alive(moved, mask, group)
    torch.testing.assert_close(baseline[1], after[1], rtol=EXACT, atol=EXACT)
    assert not torch.allclose(baseline[0], after[0], rtol=0, atol=0)


@given(groups())
@settings(deadline=None)
def test_group_std_equals_numpy(case):
    score, scored, group = case
    slow = []
    for g in group:
        members = [s for s, ok, other in zip(score, scored, group, strict=True) if ok and other == g]
        slow.append(float(np.std(members)) if members else 0.0)
    close(group_std(double(score), torch.tensor(scored), torch.tensor(group)), slow)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_group_std_ignores_unscored_values(garbage):
    scored, group = torch.tensor([True, True, False]), torch.zeros(3).long()
    found = group_std(double([1.0, 3.0, garbage]), scored, group)
    close(found, [1.0, 1.0, 1.0])
