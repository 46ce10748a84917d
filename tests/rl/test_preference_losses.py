"""Preference losses against the papers' formulas in mpmath, value and slope, and at margins that would overflow."""

import math
from functools import partial

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.pair_sums import Sides
from kleash.rl.preference_losses import (
    EXPONENT_BOUND,
    conservative_dpo,
    dpo,
    exo,
    f_dpo,
    hinge,
    ipo,
    robust_dpo,
)

BETA, FLIP, ALPHA = 0.3, 0.2, 0.4


def log(x):
    return mpmath.log(x)


def sigma(z):
    return 1 / (1 + mpmath.e ** (-z))


def u(ratio):
    """π/π_ref."""
    return mpmath.e**ratio


def divergence(c, r, slope):
    """−log σ(β f′(u_c) − β f′(u_r))."""
    return -log(sigma(BETA * slope(u(c)) - BETA * slope(u(r))))


def exo_formula(c, r):
    q, p = [sigma(BETA * c - BETA * r), sigma(BETA * r - BETA * c)], [1 - FLIP, FLIP]
    return sum(mine * log(mine / theirs) for mine, theirs in zip(q, p, strict=True))


FORWARD = lambda x: 1 - 1 / x  # noqa: E731
JS = lambda x: log(2 * x / (1 + x))  # noqa: E731
OF_ALPHA = lambda x: (1 - x ** (-ALPHA)) / ALPHA  # noqa: E731


def linear(x):
    return BETA * x


#: Ours; the paper's loss of chosen and rejected log-ratio, in mpmath; a text's implicit reward.
PAPERS = {
    "dpo": (dpo, lambda c, r: -log(sigma(BETA * c - BETA * r)), linear),
    "cdpo": (
        partial(conservative_dpo, flip=FLIP),
        lambda c, r: -(1 - FLIP) * log(sigma(BETA * (c - r))) - FLIP * log(sigma(BETA * (r - c))),
        linear,
    ),
    "robust": (
        partial(robust_dpo, flip=FLIP),
        lambda c, r: ((1 - FLIP) * -log(sigma(BETA * (c - r))) - FLIP * -log(sigma(BETA * (r - c)))) / (1 - 2 * FLIP),
        linear,
    ),
    "ipo": (ipo, lambda c, r: (c - r - 1 / (2 * mpmath.mpf(BETA))) ** 2, linear),
    "hinge": (hinge, lambda c, r: max(0, 1 - (BETA * c - BETA * r)), linear),
    "exo": (partial(exo, smoothing=FLIP), exo_formula, linear),
    "f_dpo reverse": (
        partial(f_dpo, divergence="reverse_kl"),
        partial(divergence, slope=log),
        linear,
    ),
    "f_dpo forward": (
        partial(f_dpo, divergence="forward_kl"),
        partial(divergence, slope=FORWARD),
        lambda x: BETA * FORWARD(u(x)),
    ),
    "f_dpo js": (partial(f_dpo, divergence="js"), partial(divergence, slope=JS), lambda x: BETA * JS(u(x))),
    "f_dpo alpha": (
        partial(f_dpo, divergence="alpha", alpha=ALPHA),
        partial(divergence, slope=OF_ALPHA),
        lambda x: BETA * OF_ALPHA(u(x)),
    ),
}


def at(loss, chosen, rejected, dtype=torch.float64):
    """The loss of one pair, its slope in either side, and the implicit rewards."""
    live = [torch.tensor([x], dtype=dtype, requires_grad=True) for x in (chosen, rejected)]
    found = loss(Sides(*live), BETA)
    slopes = torch.autograd.grad(found.loss.sum(), live)
    return found, [float(slope) for slope in slopes]


@pytest.mark.parametrize("name", PAPERS)
@given(chosen=st.floats(-8, 8), rejected=st.floats(-8, 8))
@settings(deadline=None, max_examples=25)
def test_equals_the_papers_formula(name, chosen, rejected):
    loss, formula, reward = PAPERS[name]
    found, slopes = at(loss, chosen, rejected)
    with mpmath.workdps(30):
        chosen, rejected = mpmath.mpf(chosen), mpmath.mpf(rejected)
        assert found.loss.item() == pytest.approx(float(formula(chosen, rejected)), rel=EXACT, abs=EXACT)
        for side, slope in enumerate(slopes):
            truth = float(mpmath.diff(formula, (chosen, rejected), (1 - side, side)))
            assert slope == pytest.approx(truth, rel=EXACT, abs=EXACT)
        for text, x in zip(found.rewards, (chosen, rejected), strict=True):
            assert float(text) == pytest.approx(float(reward(x)), rel=EXACT, abs=EXACT)
    assert not any(text.requires_grad for text in found.rewards)
    assert found.bounded == 0


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("chosen", [-1e4, -200.0, 0.0, 200.0, 1e4])
@pytest.mark.parametrize("rejected", [-1e4, -200.0, 0.0, 200.0, 1e4])
def test_no_margin_is_too_large_for_fp32(name, chosen, rejected):
    found, slopes = at(PAPERS[name][0], chosen, rejected, torch.float32)
    assert all(map(math.isfinite, [found.loss.item(), *slopes, *map(float, found.rewards)]))


@pytest.mark.parametrize("name", PAPERS)
def test_equal_sides_still_teach(name):
    """At the start policy and reference are one: every log-ratio is 0, and the gradient is not."""
    _, (up, down) = at(PAPERS[name][0], 0.0, 0.0)
    assert up < 0 < down
    assert up == -down


@pytest.mark.parametrize("divergence", ["forward_kl", "alpha"])
def test_f_dpo_goes_on_as_its_tangent(divergence):
    """At the bound value and slope are those of the curve; beyond it the slope stays, and the texts are counted."""
    alpha = ALPHA if divergence == "alpha" else None
    loss = partial(f_dpo, divergence=divergence, alpha=alpha)
    edge = -EXPONENT_BOUND / (alpha or 1.0)
    at_edge, inside = at(loss, edge, edge)
    beyond, outside = at(loss, edge - 5, edge - 5)
    assert (at_edge.bounded, beyond.bounded) == (0, 2)
    assert outside == inside
    step = 5 / (alpha or 1.0) * (alpha or 1.0) * BETA * math.exp(EXPONENT_BOUND)
    assert float(at_edge.rewards.chosen - beyond.rewards.chosen) == pytest.approx(step, rel=EXACT)


def test_alpha_goes_from_reverse_to_forward():
    """(1 − u^−α)/α → log u as α → 0, and is 1 − 1/u at 1: its difference quotient closes linearly in α."""
    ratio = Sides(torch.tensor([0.7], dtype=torch.float64), torch.tensor([-1.2], dtype=torch.float64))
    forward, reverse = (f_dpo(ratio, BETA, name).loss for name in ("forward_kl", "reverse_kl"))
    torch.testing.assert_close(f_dpo(ratio, BETA, "alpha", 1.0).loss, forward, rtol=EXACT, atol=EXACT)
    far, near = ((f_dpo(ratio, BETA, "alpha", a).loss - reverse).abs() for a in (2e-3, 1e-3))
    assert 0 < near < 0.51 * far
