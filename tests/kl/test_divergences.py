"""The divergences against mpmath at 50 digits (value and gradient), torch.distributions, and their own laws."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import BF16, EXACT, FP32
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.divergences import (
    alpha_divergence,
    chi_squared,
    forward,
    jeffreys,
    jensen_shannon,
    renyi,
    reverse,
    total_variation,
)

INF = math.inf
Mp = mpmath.mpf
Number = Any  # an mpf; mpmath has no types

# ── the reference: the textbook formulas at 50 digits, over (p, q) pairs of probabilities ───────────────


def mp_kl(p: list[Number], q: list[Number]) -> Number:
    return sum((a * mpmath.log(a / b) if b else mpmath.inf) if a else Mp(0) for a, b in zip(p, q, strict=True))


def mp_jensen_shannon(p: list[Number], q: list[Number]) -> Number:
    m = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    return (mp_kl(p, m) + mp_kl(q, m)) / 2


def mp_chi_squared(p: list[Number], q: list[Number]) -> Number:
    pairs = [(a, b) for a, b in zip(p, q, strict=True) if a or b]
    return sum((a - b) ** 2 / b if b else mpmath.inf for a, b in pairs)


def mp_power_sum(p: list[Number], q: list[Number], alpha: float) -> Number:
    """Σ p^α q^(1−α), with 0^positive = 0 and 0^negative = ∞."""
    total = Mp(0)
    for a, b in zip(p, q, strict=True):
        if a and b:
            total += a ** Mp(alpha) * b ** (1 - Mp(alpha))
        elif (a and alpha > 1) or (b and alpha < 0):
            total += mpmath.inf
    return total


def mp_renyi(p: list[Number], q: list[Number], alpha: float) -> Number:
    total = mp_power_sum(p, q, alpha)
    return (mpmath.log(total) if total else -mpmath.inf) / (Mp(alpha) - 1)


def mp_alpha(p: list[Number], q: list[Number], alpha: float) -> Number:
    return (mp_power_sum(p, q, alpha) - 1) / (Mp(alpha) * (Mp(alpha) - 1))


Divergence = Callable[[Tensor, Tensor], Tensor]
TABLE: dict[str, tuple[Divergence, Callable[[list[Number], list[Number]], Number]]] = {
    "reverse": (reverse, mp_kl),
    "forward": (forward, lambda p, q: mp_kl(q, p)),
    "jeffreys": (jeffreys, lambda p, q: mp_kl(p, q) + mp_kl(q, p)),
    "jensen_shannon": (jensen_shannon, mp_jensen_shannon),
    "total_variation": (total_variation, lambda p, q: sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2),
    "chi_squared": (chi_squared, mp_chi_squared),
}
for _alpha in (0.3, 0.5, 2.0, 3.5):
    TABLE[f"renyi {_alpha}"] = (
        lambda p, q, a=_alpha: renyi(p, q, a),
        lambda p, q, a=_alpha: mp_renyi(p, q, a),
    )
for _alpha in (-0.7, 0.5, 2.0, 3.5):
    TABLE[f"alpha {_alpha}"] = (
        lambda p, q, a=_alpha: alpha_divergence(p, q, a),
        lambda p, q, a=_alpha: mp_alpha(p, q, a),
    )
every = pytest.mark.parametrize("name", TABLE)


def mp_softmax(logits: list[Number]) -> list[Number]:
    weights = [Mp(0) if z == -INF else mpmath.exp(z) for z in logits]
    return [w / sum(weights) for w in weights]


def mp_value_and_slopes(name: str, p: list[float], q: list[float]) -> tuple[float, list[float]]:
    """D and its derivative by each finite logit of both sides (central differences at 50 digits; 0 at −inf)."""
    formula, step = TABLE[name][1], Mp(10) ** -18
    logits = [Mp(z) for z in (*p, *q)]

    def at(z: list[Number]) -> Number:
        return formula(mp_softmax(z[: len(p)]), mp_softmax(z[len(p) :]))

    with mpmath.workdps(50):
        slopes = []
        for i, z in enumerate(logits):
            up, down = ([*logits[:i], z + h, *logits[i + 1 :]] for h in (step, -step))
            slopes.append(0.0 if z == -INF else float((at(up) - at(down)) / (2 * step)))
        return float(at(logits)), slopes


def value_and_slopes(
    name: str, p: list[float], q: list[float], dtype: torch.dtype = torch.float64
) -> tuple[float, list[float]]:
    a, b = (torch.tensor(z, dtype=dtype, requires_grad=True) for z in (p, q))
    value = TABLE[name][0](a.log_softmax(-1), b.log_softmax(-1))
    slopes = torch.autograd.grad(value, (a, b))
    return float(value.detach()), torch.cat(slopes).tolist()


GENERAL = [
    ([0.3, -1.2, 2.0, 0.1], [1.0, 0.4, -0.6, 0.2]),
    ([0.0, 0.0, 0.0, 1e-3], [0.0, 0.0, 0.0, 0.0]),
    ([12.0, 0.0, -5.0, 1.0], [0.0, 3.0, 4.0, -9.0]),
]
#: −inf on both sides; where only the policy cannot; where only the reference cannot.
NEITHER = ([0.3, -INF, 2.0, 0.1], [1.0, -INF, -0.6, 0.2])
NOT_P = ([0.3, -INF, 2.0, -INF], [1.0, 0.4, -0.6, -INF])
NOT_Q = (NOT_P[1], NOT_P[0])


@every
@pytest.mark.parametrize("pair", [*GENERAL, NEITHER, NOT_P, NOT_Q])
def test_equals_mpmath(name: str, pair: tuple[list[float], list[float]]) -> None:
    """Value and gradient (by the logits, through log_softmax); infinite exactly where it truly is."""
    value, slopes = mp_value_and_slopes(name, *pair) if mp_finite(name, *pair) else (INF, None)
    if slopes is None:
        a, b = (torch.tensor(z, dtype=torch.float64).log_softmax(-1) for z in pair)
        assert float(TABLE[name][0](a, b)) == INF
        return
    found, found_slopes = value_and_slopes(name, *pair)
    assert found == pytest.approx(value, rel=EXACT, abs=EXACT)
    # A slope is a difference of terms as large as the largest slope, which set its rounding.
    largest = max(1.0, *map(abs, slopes))
    assert [a / largest for a in found_slopes] == pytest.approx([b / largest for b in slopes], abs=EXACT)


def mp_finite(name: str, p: list[float], q: list[float]) -> bool:
    with mpmath.workdps(50):
        return bool(mpmath.isfinite(TABLE[name][1](mp_softmax([Mp(z) for z in p]), mp_softmax([Mp(z) for z in q]))))


def test_which_ones_are_infinite() -> None:
    """The table of infinities itself, spelled out, so that the reference above is not trusted blindly."""
    infinite_not_p = {name for name in TABLE if not mp_finite(name, *NOT_P)}
    infinite_not_q = {name for name in TABLE if not mp_finite(name, *NOT_Q)}
    assert infinite_not_p == {"forward", "jeffreys", "alpha -0.7"}
    assert infinite_not_q == {
        "reverse", "jeffreys", "chi_squared", "renyi 2.0", "renyi 3.5", "alpha 2.0", "alpha 3.5",
    }  # fmt: skip
    assert all(mp_finite(name, *NEITHER) for name in TABLE)


@every
@pytest.mark.parametrize("pair", [NEITHER, NOT_P, NOT_Q])
def test_no_nan_by_the_logprobs_either(name: str, pair: tuple[list[float], list[float]]) -> None:
    """The gradient by the log-probs themselves has no NaN wherever the value is finite."""
    a, b = (torch.tensor(z, dtype=torch.float64).log_softmax(-1).requires_grad_() for z in pair)
    value = TABLE[name][0](a, b)
    if bool(value.isfinite()):
        assert all(bool(slope.isfinite().all()) for slope in torch.autograd.grad(value, (a, b)))


def test_an_infinite_row_leaves_its_neighbours_alone() -> None:
    """Rows are independent: the row whose KL is inf changes neither value nor gradient of the finite one."""
    rows = torch.tensor([NOT_Q[0], GENERAL[0][0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([NOT_Q[1], GENERAL[0][1]], dtype=torch.float64)
    kl = reverse(rows.log_softmax(-1), reference.log_softmax(-1))
    (slope,) = torch.autograd.grad(kl[1], rows)
    value, slopes = mp_value_and_slopes("reverse", *GENERAL[0])
    assert float(kl[0].detach()) == INF
    assert float(kl[1].detach()) == pytest.approx(value, rel=EXACT)
    assert slope[1].tolist() == pytest.approx(slopes[:4], abs=EXACT)


def test_equals_torch_distributions() -> None:
    p, q = torch.randn(2, 5, 7, 11, dtype=torch.float64).log_softmax(-1)
    pi, ref = torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
    torch.testing.assert_close(reverse(p, q), torch.distributions.kl_divergence(pi, ref), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(forward(p, q), torch.distributions.kl_divergence(ref, pi), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@every
def test_narrow_inputs_are_computed_in_fp32(name: str, dtype: torch.dtype) -> None:
    """Against float64 on the same rounded inputs."""
    p, q = torch.randn(2, 6, 50).log_softmax(-1).to(dtype)
    found = TABLE[name][0](p, q)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), TABLE[name][0](p.double(), q.double()), rtol=FP32, atol=FP32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("nats", [0.0, 1.0, 10.0, 50.0, 100.0])
def test_forward_is_alive_and_reverse_is_true_up_to_100_nats(dtype: torch.dtype, nats: float) -> None:
    """A token whose log-prob the policy put `nats` below the reference: forward's pull on it never lets go."""
    p = torch.tensor([-nats, 0.0]).log_softmax(-1).to(dtype).requires_grad_()
    q = torch.tensor([0.0, 0.0]).log_softmax(-1).to(dtype)
    (pull,) = torch.autograd.grad(forward(p, q), p)
    assert bool(forward(p, q).isfinite()) and float(pull[0]) == pytest.approx(-0.5, abs=BF16)
    (found,) = torch.autograd.grad(reverse(p, q), p)
    # d/dp of e^p (p − q) is e^p (p − q + 1), here in double precision on the same rounded inputs.
    a, b = p.detach().double(), q.double()
    # The gradient of a narrow input comes back in its dtype, rounded once.
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), a.exp() * (a - b + 1), rtol=max(FP32, rounding), atol=FP32)
    assert bool(reverse(p, q).isfinite())


# ── laws ────────────────────────────────────────────────────────────────────────────────────────────────

logits = st.lists(st.floats(-20, 20) | st.just(-INF), min_size=6, max_size=6).filter(lambda z: max(z) > -INF)


def log_probs(z: list[float]) -> Tensor:
    return torch.tensor(z, dtype=torch.float64).log_softmax(-1)


@every
@settings(max_examples=30)  # for each of the divergences
@given(p=logits, q=logits)
def test_never_negative_never_nan(name: str, p: list[float], q: list[float]) -> None:
    assert float(TABLE[name][0](log_probs(p), log_probs(q))) >= -EXACT


@every
@settings(max_examples=30)  # for each of the divergences
@given(p=logits)
def test_zero_of_equals(name: str, p: list[float]) -> None:
    assert float(TABLE[name][0](log_probs(p), log_probs(p))) == pytest.approx(0.0, abs=EXACT)


@every
@settings(max_examples=30)  # for each of the divergences
@given(p=logits, q=logits)
def test_positive_of_unequals(name: str, p: list[float], q: list[float]) -> None:
    a, b = log_probs(p), log_probs(q)
    if float((a.exp() - b.exp()).abs().max()) > 1e-3:
        assert float(TABLE[name][0](a, b)) > 1e-8


@pytest.mark.parametrize("name", ["jeffreys", "jensen_shannon", "total_variation", "alpha 0.5", "renyi 0.5"])
@given(p=logits, q=logits)
def test_symmetric(name: str, p: list[float], q: list[float]) -> None:
    a, b = log_probs(p), log_probs(q)
    one, other = float(TABLE[name][0](a, b)), float(TABLE[name][0](b, a))
    assert one == pytest.approx(other, rel=EXACT, abs=EXACT)


@given(p=logits, q=logits)
def test_order(p: list[float], q: list[float]) -> None:
    """Rényi grows with α and meets the KL at 1; Pinsker; Jensen–Shannon ≤ log 2; TV ≤ 1; KL ≤ log(1 + χ²)."""
    a, b = log_probs(p), log_probs(q)
    ladder = [float(renyi(a, b, alpha)) for alpha in (0.25, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0)]
    assert all(low <= high + EXACT for low, high in pairwise(ladder))
    kl, tv = float(reverse(a, b)), float(total_variation(a, b))
    assert tv <= 1 + EXACT and 2 * tv * tv <= kl + EXACT
    assert float(jensen_shannon(a, b)) <= math.log(2) + EXACT
    assert kl <= math.log1p(float(chi_squared(a, b))) + EXACT


def test_alpha_limits() -> None:
    """Both families pass through the KLs: at α = 1 and 0 exactly, and continuously from either side."""
    a, b = log_probs(GENERAL[0][0]), log_probs(GENERAL[0][1])
    assert float(renyi(a, b, 1.0)) == float(alpha_divergence(a, b, 1.0)) == float(reverse(a, b))
    assert float(alpha_divergence(a, b, 0.0)) == float(forward(a, b))
    for step in (1e-6, -1e-6):
        assert float(renyi(a, b, 1 + step)) == pytest.approx(float(reverse(a, b)), rel=FP32)
        assert float(alpha_divergence(a, b, 1 + step)) == pytest.approx(float(reverse(a, b)), rel=FP32)
        assert float(alpha_divergence(a, b, step)) == pytest.approx(float(forward(a, b)), rel=FP32)
    assert float(alpha_divergence(a, b, 2.0)) == pytest.approx(float(chi_squared(a, b)) / 2, rel=EXACT)


@pytest.mark.parametrize("alpha", [0.0, -1.0, INF, math.nan])
def test_renyi_refuses(alpha: float) -> None:
    with pytest.raises(UsageError, match="positive finite alpha"):
        renyi(log_probs([0.0, 1.0]), log_probs([1.0, 0.0]), alpha)
    if not math.isfinite(alpha):
        with pytest.raises(UsageError, match="finite alpha"):
            alpha_divergence(log_probs([0.0, 1.0]), log_probs([1.0, 0.0]), alpha)
