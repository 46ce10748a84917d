"""Preference losses against the papers' formulas in mpmath, value and slope, and at margins that would overflow."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.pair_sums import Sides
from kleash.rl.preference_losses import dpo

BETA = 0.3


def sigma(z):
    return 1 / (1 + mpmath.e ** (-z))


#: The paper's formula of chosen and rejected log-ratio (mpmath) → loss, and that of a text's implicit reward.
PAPERS = {
    "dpo": (dpo, lambda c, r: -mpmath.log(sigma(BETA * c - BETA * r)), lambda x: BETA * x),
}


def at(loss, chosen, rejected, dtype=torch.float64):
    """The loss of one pair, its slope in either side, and the implicit rewards."""
    live = [torch.tensor([x], dtype=dtype, requires_grad=True) for x in (chosen, rejected)]
    found = loss(Sides(*live), BETA)
    slopes = torch.autograd.grad(found.loss.sum(), live)
    return found, [float(slope) for slope in slopes]


@pytest.mark.parametrize("name", PAPERS)
@given(chosen=st.floats(-8, 8), rejected=st.floats(-8, 8))
@settings(deadline=None, max_examples=40)
def test_equals_the_papers_formula(name, chosen, rejected):
    loss, formula, reward = PAPERS[name]
    found, slopes = at(loss, chosen, rejected)
    with mpmath.workdps(30):
        assert found.loss.item() == pytest.approx(float(formula(chosen, rejected)), rel=EXACT, abs=EXACT)
        for side, slope in enumerate(slopes):
            truth = mpmath.diff(formula, (chosen, rejected), (1 - side, side))
            assert slope == pytest.approx(float(truth), rel=EXACT, abs=EXACT)
        for text, x in zip(found.rewards, (chosen, rejected), strict=True):
            assert float(text) == pytest.approx(float(reward(x)), rel=EXACT, abs=EXACT)
    assert not any(text.requires_grad for text in found.rewards)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("chosen", [-1e4, -200.0, 0.0, 200.0, 1e4])
@pytest.mark.parametrize("rejected", [-1e4, -200.0, 0.0, 200.0, 1e4])
def test_no_margin_is_too_large_for_fp32(name, chosen, rejected):
    found, slopes = at(PAPERS[name][0], chosen, rejected, torch.float32)
    assert all(map(math.isfinite, [found.loss.item(), *slopes, *map(float, found.rewards)]))
