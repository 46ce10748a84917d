"""Rewards per token and advantages against slow loops written from the papers, holes in the mask and all."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.gae import generalised_advantages, token_rewards

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
numbers = st.floats(-5, 5)


@st.composite
def tokens(draw, columns):
    """`columns` tables [B, T] of numbers and a mask with holes."""
    B, T = draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def table(of):
        return draw(st.lists(st.lists(of, min_size=T, max_size=T), min_size=B, max_size=B))

    return *(table(numbers) for _ in range(columns)), table(st.booleans())


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def close(found, truth):
    torch.testing.assert_close(found, double(truth), rtol=EXACT, atol=EXACT)


@given(case=tokens(1), beta=st.floats(0, 2))
@settings(deadline=None)
def test_token_rewards_equal_slow_loop(case, beta):
    """Ziegler: r_t = −β x_t, and the score on the last token; the exact KL charges K of the *next* token, none last."""
    kl, mask = case
    score = [0.5 + i for i in range(len(kl))]
    sampled, exact, k1_to_go, exact_to_go = [], [], [], []
    for x, row, R in zip(kl, mask, score, strict=True):
        counted = [t for t, counts in enumerate(row) if counts]
        reward, shifted, here, after = ([0.0] * len(row) for _ in range(4))
        for place, t in enumerate(counted):
            later = counted[place + 1 :]
            reward[t] = -beta * x[t] + (R if not later else 0)
            shifted[t] = R if not later else -beta * x[later[0]]
            here[t] = x[t] + sum(x[n] for n in later)
            after[t] = sum(x[n] for n in later)
        sampled.append(reward)
        exact.append(shifted)
        k1_to_go.append(here)
        exact_to_go.append(after)
    m = torch.tensor(mask)
    close(token_rewards(double(score), double(k1_to_go), m, beta), sampled)
    close(token_rewards(double(score), double(exact_to_go), m, beta), exact)
    close(token_rewards(double(score), None, m, 0.7), [
        [R if t in [u for u, counts in enumerate(row) if counts][-1:] else 0.0 for t in range(len(row))]
        for R, row in zip(score, mask, strict=True)
    ])  # fmt: skip


def slow_advantages(reward, values, mask, ratio, gamma, lam):
    """A_t = Σ_k (γλ)^k Π ρ δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t, summed anew for each token."""
    out = []
    for r, v, row, rho in zip(reward, values, mask, ratio, strict=True):
        counted = [t for t, counts in enumerate(row) if counts]
        after = {t: v[n] for t, n in pairwise(counted)}
        delta = {t: r[t] + gamma * after.get(t, 0.0) - v[t] for t in counted}
        line = [0.0] * len(row)
        for place, t in enumerate(counted):
            weight = 1.0
            for k, n in enumerate(counted[place:]):
                if k:
                    weight *= gamma * lam * rho[n]
                line[t] += weight * delta[n]
        out.append(line)
    return out


@given(case=tokens(3), gamma=st.floats(0.1, 1), lam=st.floats(0, 1))
@settings(deadline=None)
def test_advantages_equal_slow_loop(case, gamma, lam):
    reward, values, logs, mask = case
    ratio = [[math.exp(x / 5) for x in row] for row in logs]
    m, ones = torch.tensor(mask), [[1.0] * len(row) for row in mask]
    for given_ratio, rho in ((None, ones), (double(ratio), ratio)):
        found = generalised_advantages(
            double(reward), double(values), m, gamma=gamma, gae_lambda=lam, importance=given_ratio
        )
        truth = slow_advantages(reward, values, mask, rho, gamma, lam)
        close(found.advantage, truth)
        sums = [
            [a + v if counts else 0.0 for a, v, counts in zip(*rows, strict=True)]
            for rows in zip(truth, values, mask, strict=True)
        ]
        close(found.returns, sums)


@given(case=tokens(2))
@settings(deadline=None)
def test_with_gamma_and_lambda_one_the_returns_do_not_know_the_values(case):
    reward, values, mask = case
    m = torch.tensor(mask)
    found = generalised_advantages(double(reward), double(values), m, gamma=1.0, gae_lambda=1.0)
    to_go = [
        [sum(x for x, c in zip(r[t:], row[t:], strict=True) if c) if row[t] else 0.0 for t in range(len(row))]
        for r, row in zip(reward, mask, strict=True)
    ]
    close(found.returns, to_go)


@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_the_mask_hides_changes_nothing(garbage):
    mask = torch.tensor([[True, False, True, False]])
    clean, dirty = double([[1.0, 0.0, 2.0, 0.0]]), double([[1.0, garbage, 2.0, garbage]])
    for x in (clean, dirty):
        assert torch.equal(token_rewards(double([3.0]), x, mask, 1.0), double([[1.0, 0.0, 1.0, 0.0]]))
        found = generalised_advantages(x, x, mask, gamma=1.0, gae_lambda=1.0, importance=x.abs())
        assert torch.equal(found.advantage, double([[1.0 + 2.0 - 1.0, 0.0, 0.0, 0.0]]))
