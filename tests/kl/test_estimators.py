"""Every claim of ESTIMATORS and every placement of an estimator, by exact sums over a tabular model with T > 1."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tabular import (
    Sequences,
    at_distance,
    each_gradient,
    enumerate_sequences,
    expected_gradient,
    n_prefixes,
    position_kl,
    probabilities,
    random_logits,
    sequence_kl,
    to_go,
    token_logprobs,
)
from tests.tolerances import EXACT, FP32
from torch import Tensor

from kleash.kl.estimators import ESTIMATORS, K3_BOUND, beyond_bound, k1, k2, k3

WHOLE = enumerate_sequences(3, 3)
ENDING = enumerate_sequences(3, 3, eos=0)
instances = pytest.mark.parametrize("e", [WHOLE, ENDING], ids=["whole", "eos"])
distances = pytest.mark.parametrize("kl", [0.01, 0.2, 0.63, 1.5])


def log_ratio(policy: Tensor, reference: Tensor, e: Sequences) -> Tensor:
    return token_logprobs(policy, e) - token_logprobs(reference, e)


def gradient(value: Tensor, policy: Tensor) -> Tensor:
    return torch.autograd.grad(value, policy, retain_graph=True)[0]


def same(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).norm() <= EXACT * b.norm().clamp(min=1.0))


# ── the kit itself ──────────────────────────────────────────────────────────────────────────────────────


@instances
def test_the_kit_sums_to_one_and_its_kl_is_a_chain(e: Sequences) -> None:
    """Σ P = 1; the KL of whole sequences is the expected sum of the positions' KLs (chain rule)."""
    policy, reference = at_distance(4, e, 0.5)
    p = probabilities(policy, e)
    assert float(p.sum()) == pytest.approx(1.0, abs=EXACT)
    assert float(sequence_kl(policy.detach(), reference, e)) == pytest.approx(0.5, abs=EXACT)
    assert float((p[:, None] * position_kl(policy.detach(), reference, e)).sum()) == pytest.approx(0.5, abs=EXACT)


def test_the_kit_enumerates_each_sequence_once() -> None:
    assert len(WHOLE.ids) == 27 and bool(WHOLE.mask.all()) and n_prefixes(3, 3) == 13
    # With an absorbing end token: 1 of length 1, 2 of length 2, and 4 · 3 of length 3.
    assert ENDING.mask.sum(1).bincount().tolist() == [0, 1, 2, 12]
    assert len({tuple(row) for row in ENDING.ids.tolist()}) == 15


def test_the_kit_probability_is_the_product_of_its_tables() -> None:
    """By hand for the sequence (2, 1, 0), whose prefixes are rows 0, 3 and 3·3 + 2 = 11."""
    logits = random_logits(5, WHOLE).detach()
    table = torch.softmax(logits, -1)
    index = WHOLE.ids.tolist().index([2, 1, 0])
    by_hand = table[0, 2] * table[3, 1] * table[11, 0]
    assert float(probabilities(logits, WHOLE)[index]) == pytest.approx(float(by_hand), rel=EXACT)


# ── the claims table ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ESTIMATORS)
@instances
@distances
def test_claims_by_enumeration(name: str, e: Sequences, kl: float) -> None:
    """unbiased, nonnegative and gradient-as-a-loss of each row, for sequences drawn from the policy."""
    info = ESTIMATORS[name]
    policy, reference = at_distance(4, e, kl)
    p = probabilities(policy, e)
    values = torch.where(e.mask, info.fn(log_ratio(policy, reference, e)), 0.0)

    bias = float((p[:, None] * values.detach()).sum()) - kl
    assert (abs(bias) <= EXACT) == info.unbiased
    assert info.unbiased or abs(bias) > 1e-3 * kl
    assert bool((values >= 0).all()) == info.nonnegative

    forward = info.gradient == "forward per prefix"
    frozen = (p[:, None] * position_kl(policy, reference, e, forward=forward)).sum()
    target = torch.zeros_like(policy) if info.gradient == "zero" else gradient(frozen, policy)
    assert same(expected_gradient(values.sum(1), policy, p), target)


@instances
@distances
def test_own_token_is_not_the_sequence(e: Sequences, kl: float) -> None:
    """For T > 1 neither k2 nor k3 as a loss is the gradient of the sequence's KL: the claims above are tight."""
    policy, reference = at_distance(4, e, kl)
    p, x = probabilities(policy, e), log_ratio(policy, reference, e)
    target = gradient(sequence_kl(policy, reference, e), policy)
    for fn in (k1, k2, k3):
        found = expected_gradient(torch.where(e.mask, fn(x), 0.0).sum(1), policy, p)
        assert float((found - target).norm() / target.norm()) > 0.02


def test_with_one_step_k2_is_the_reverse_and_k3_the_forward_kl() -> None:
    """T = 1, where the difference between a position and a sequence disappears."""
    e = enumerate_sequences(4, 1)
    policy, reference = at_distance(4, e, 0.3)
    p, x = probabilities(policy, e), log_ratio(policy, reference, e)
    assert same(expected_gradient(k2(x).sum(1), policy, p), gradient(sequence_kl(policy, reference, e), policy))
    forward = position_kl(policy, reference, e, forward=True)[0, 0]
    assert same(expected_gradient(k3(x).sum(1), policy, p), gradient(forward, policy))


# ── placements (kl-in-reward, own + future, off-policy) ─────────────────────────────────────────────────


@instances
@distances
def test_placements_that_are_the_sequence_gradient(e: Sequences, kl: float) -> None:
    """k1 reward-to-go; k2 own + future k1; k3 in loss and reward; exact own + future exact: all ∇KL(sequence)."""
    policy, reference = at_distance(4, e, kl)
    p, log_p = probabilities(policy, e), token_logprobs(policy, e)
    x = log_ratio(policy, reference, e)
    exact = position_kl(policy, reference, e)
    x1, x2, x3 = (torch.where(e.mask, fn(x), 0.0) for fn in (k1, k2, k3))
    losses = {
        "k1 in reward": log_p * to_go(x1).detach(),
        "k2 own, k1 to come": x2 + log_p * (to_go(x1) - x1).detach(),
        "k3 in loss and in reward": x3 + log_p * to_go(x3).detach(),
        "exact own, exact to come": exact + log_p * (to_go(exact) - exact).detach(),
    }
    target = gradient(sequence_kl(policy, reference, e), policy)
    for name, loss in losses.items():
        assert same(expected_gradient(loss.sum(1), policy, p), target), name


@instances
def test_k2_and_k3_in_the_reward_vanish_or_point_backwards(e: Sequences) -> None:
    """The refused cells: near the reference next to nothing of ∇KL is left, and on some policies it points away."""
    for fn in (k2, k3):
        cosines = []
        for seed, kl in ((9, 0.01), (28, 0.2), (11, 1.5)):
            policy, reference = at_distance(seed, e, kl)
            p, log_p, x = probabilities(policy, e), token_logprobs(policy, e), log_ratio(policy, reference, e)
            target = gradient(sequence_kl(policy, reference, e), policy)
            reward = torch.where(e.mask, fn(x), 0.0)
            found = expected_gradient((log_p * to_go(reward).detach()).sum(1), policy, p)
            assert kl > 0.01 or float(found.norm()) < 0.2 * float(target.norm())
            cosines.append(float((found * target).sum() / (found.norm() * target.norm())))
        assert max(cosines) < 0


@instances
@distances
def test_off_policy_only_the_prefix_ratio_is_exact(e: Sequences, kl: float) -> None:
    """Sequences from another μ: ρ_{1:t} k3_t and ρ_{<t} KL_t have the right value and gradient, ρ_t k3_t neither."""
    policy, reference = at_distance(4, e, kl)
    mu = (policy + 0.5 * random_logits(77, e)).detach()
    weight, x = probabilities(mu, e), log_ratio(policy, reference, e)
    rho = (token_logprobs(policy, e) - token_logprobs(mu, e)).exp()
    through = rho.cumprod(1)
    before = torch.cat([torch.ones_like(rho[:, :1]), through[:, :-1]], 1)
    x3 = torch.where(e.mask, k3(x), 0.0)
    target = gradient(sequence_kl(policy, reference, e), policy)
    for loss in (through * x3, before * position_kl(policy, reference, e)):
        assert float((weight[:, None] * loss.detach()).sum()) == pytest.approx(kl, abs=EXACT)
        assert same(expected_gradient(loss.sum(1), policy, weight), target)
    assert abs(float((weight[:, None] * rho * x3).detach().sum()) - kl) > 1e-4 * kl
    wrong = expected_gradient((rho * x3).sum(1), policy, weight)
    assert float((wrong - target).norm() / target.norm()) > 0.02


@instances
@distances
def test_the_exact_gradient_has_the_least_variance(e: Sequences, kl: float) -> None:
    """tr Cov of one sample's gradient: exact own + to come below k1 in reward, at every distance."""
    policy, reference = at_distance(4, e, kl)
    p, log_p = probabilities(policy, e), token_logprobs(policy, e)
    x, exact = log_ratio(policy, reference, e), position_kl(policy, reference, e)

    def scatter(loss: Tensor) -> float:
        each = each_gradient(loss.sum(1), policy)
        mean = (p[:, None] * each).sum(0)
        return float((p * (each - mean).square().sum(1)).sum())

    sampled = scatter(log_p * to_go(x).detach())
    assert scatter(exact + log_p * (to_go(exact) - exact).detach()) < 0.7 * sampled


# ── a Gaussian pair, where value, bias and spread have closed forms ─────────────────────────────────────


def gaussian_moments(fn: object, m: float) -> tuple[float, float]:
    """Mean and std of fn(log q − log p) for x ~ q = N(0,1), p = N(m,1), by Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    weights = torch.from_numpy(weights / weights.sum())
    values = fn(m * m / 2 - m * torch.from_numpy(nodes))  # type: ignore[operator]
    mean = float((weights * values).sum())
    return mean, math.sqrt(float((weights * (values - mean).square()).sum()))


@pytest.mark.parametrize("m", [0.1, 0.5, 1.0])
def test_gaussian_closed_forms(m: float) -> None:
    kl = m * m / 2
    closed = {
        k1: (kl, m),
        k2: (kl * (1 + m * m / 4), kl * math.sqrt(2 + m * m)),
        k3: (kl, math.sqrt(math.exp(m * m) - 1 - m * m)),
    }
    for fn, expected in closed.items():
        assert gaussian_moments(fn, m) == pytest.approx(expected, rel=EXACT)


#: Printed in Schulman 2020: (m, bias/true, std/true) of each estimator.
SCHULMAN = {
    "k1": [(0.1, 0.0, 20.0), (1.0, 0.0, 2.0)],
    "k2": [(0.1, 0.002, 1.42), (1.0, 0.25, 1.73)],
    "k3": [(0.1, 0.0, 1.42), (1.0, 0.0, 1.7)],
}


@pytest.mark.parametrize("name", SCHULMAN)
def test_schulmans_printed_table(name: str) -> None:
    """To the printed digits (0.002 is printed for 0.0025, and 1.7 for 1.695)."""
    for m, bias, std in SCHULMAN[name]:
        kl = m * m / 2
        mean, spread = gaussian_moments(ESTIMATORS[name].fn, m)
        assert abs((mean - kl) / kl - bias) < 0.00051
        assert abs(spread / kl - std) < 0.0051


# ── numbers: range, dtypes, continuity ──────────────────────────────────────────────────────────────────

RANGE = [-100.0, -50.0, -20.0, -10.5, -10.0, -9.5, -5.0, -1.0, -0.25, 0.0, 0.25, 1.0, 5.0, 20.0, 50.0, 100.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_with_a_live_gradient_from_minus_to_plus_100_nats(dtype: torch.dtype) -> None:
    x = torch.tensor(RANGE, dtype=dtype, requires_grad=True)
    for fn in (k1, k2, k3):
        y = fn(x)
        assert y.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert bool(y.isfinite().all()) and bool(slope.isfinite().all())
        assert bool((slope[x != 0] != 0).all())


def mp_k3(x: float) -> tuple[float, float]:
    """Value and slope at 50 digits, with the tangent past the bound."""
    with mpmath.workdps(50):
        edge = mpmath.mpf(-K3_BOUND)
        at = max(mpmath.mpf(x), edge)
        value, slope = mpmath.exp(-at) - 1 + at, 1 - mpmath.exp(-at)
        return float(value + slope * (mpmath.mpf(x) - at)), float(slope)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, FP32)])
def test_k3_equals_mpmath(dtype: torch.dtype, tolerance: float) -> None:
    """Relative, also near 0 where the written formula cancels to nothing, and on both sides of every branch."""
    points = [*RANGE, 1e-12, -1e-12, 1e-7, -1e-7, 1e-4, -1e-3, 0.0999, -0.0999, 0.1001, -0.1001]
    x = torch.tensor(points, dtype=dtype, requires_grad=True)
    y = k3(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    for i, at in enumerate(x.tolist()):
        assert (float(y[i].detach()), float(slope[i])) == pytest.approx(mp_k3(at), rel=tolerance, abs=0)


def test_k3_continues_with_value_and_slope() -> None:
    near = torch.tensor([-K3_BOUND - 1e-9, -K3_BOUND, -K3_BOUND + 1e-9], dtype=torch.float64).requires_grad_()
    y = k3(near)
    (slope,) = torch.autograd.grad(y.sum(), near)
    assert float((y[0] - y[2]).detach()) == pytest.approx(2e-9 * math.expm1(K3_BOUND), rel=FP32)
    assert slope.tolist() == pytest.approx([-math.expm1(K3_BOUND)] * 3, rel=FP32)
    assert beyond_bound(near).tolist() == [True, False, False]
    (half,) = torch.autograd.grad(k3(x := torch.tensor([-100.0], dtype=torch.float16, requires_grad=True)), x)
    assert bool(half.isfinite().all())  # the reason for the bound: its slope fits fp16


def test_few_tokens_of_the_policy_lie_beyond_the_bound() -> None:
    """P_π(log_ratio < −K3_BOUND) ≤ e^−K3_BOUND, at any distance."""
    for seed in range(5):
        p, q = (30 * torch.randn(1000, dtype=torch.float64).log_softmax(-1) for _ in range(2))
        p, q = p.log_softmax(-1), q.log_softmax(-1)
        assert float(p.exp()[beyond_bound(p - q)].sum()) <= math.exp(-K3_BOUND), seed


@given(st.floats(width=32, allow_nan=False))
def test_k3_is_never_negative(x: float) -> None:
    assert float(k3(torch.tensor(x))) >= 0


def test_not_a_number_is_not_hidden() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf])
    assert k3(odd).isnan().tolist() == [True, False, False]
    assert k3(odd)[1:].tolist() == [math.inf, math.inf]


def test_an_infinite_neighbour_leaves_the_gradient_alone() -> None:
    x = torch.tensor([0.5, math.inf, -math.inf, 0.01], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(k3(x).sum(), x)
    assert slope.tolist() == pytest.approx([1 - math.exp(-0.5), 1.0, -math.expm1(K3_BOUND), 1 - math.exp(-0.01)])
