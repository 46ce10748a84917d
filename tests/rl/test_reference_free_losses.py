"""Losses without a reference against the papers' formulas in mpmath, value and slope, and at the pole of the odds."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.pair_sums import Sides
from kleash.rl.reference_free_losses import ODDS_BOUND, cpo, orpo, simpo

BETA, GAMMA, NLL, LENGTHS = 0.7, 0.4, 0.6, (5, 3)


def sigma(z):
    return 1 / (1 + mpmath.e ** (-z))


def odds(m):
    return mpmath.e**m / (1 - mpmath.e**m)


def whole(means):
    return Sides(*(length * side for length, side in zip(LENGTHS, means, strict=True)))


#: Ours; the paper's loss of the two mean log-probs; a text's implicit reward (of its mean and its length).
PAPERS = {
    "orpo": (
        lambda m: orpo(m, BETA),
        lambda c, r: -c - BETA * mpmath.log(sigma(mpmath.log(odds(c) / odds(r)))),
        lambda m, length: BETA * mpmath.log(odds(m)),
    ),
    "simpo": (
        lambda m: simpo(m, BETA, GAMMA),
        lambda c, r: -mpmath.log(sigma(BETA * c - BETA * r - GAMMA)),
        lambda m, length: BETA * m,
    ),
    "cpo": (
        lambda m: cpo(whole(m), m, BETA, NLL),
        lambda c, r: -mpmath.log(sigma(BETA * (LENGTHS[0] * c - LENGTHS[1] * r))) - NLL * c,
        lambda m, length: BETA * length * m,
    ),
}


def at(loss, chosen, rejected, dtype=torch.float64):
    live = [torch.tensor([x], dtype=dtype, requires_grad=True) for x in (chosen, rejected)]
    found = loss(Sides(*live))
    return found, [float(slope) for slope in torch.autograd.grad(found.loss.sum(), live)]


@pytest.mark.parametrize("name", PAPERS)
@given(chosen=st.floats(-9, -0.01), rejected=st.floats(-9, -0.01))
@settings(deadline=None, max_examples=25)
def test_equals_the_papers_formula(name, chosen, rejected):
    loss, formula, reward = PAPERS[name]
    found, slopes = at(loss, chosen, rejected)
    with mpmath.workdps(30):
        point = mpmath.mpf(chosen), mpmath.mpf(rejected)
        assert found.loss.item() == pytest.approx(float(formula(*point)), rel=EXACT, abs=EXACT)
        for side, slope in enumerate(slopes):
            truth = float(mpmath.diff(formula, point, (1 - side, side)))
            assert slope == pytest.approx(truth, rel=EXACT, abs=EXACT)
        for text, m, length in zip(found.rewards, point, LENGTHS, strict=True):
            assert float(text) == pytest.approx(float(reward(m, length)), rel=EXACT, abs=EXACT)
    assert found.bounded == 0


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("chosen", [-1e4, -200.0, -1e-7, 0.0])
@pytest.mark.parametrize("rejected", [-1e4, -200.0, -1e-7, 0.0])
def test_no_log_prob_is_too_far_for_fp32(name, chosen, rejected):
    found, slopes = at(PAPERS[name][0], chosen, rejected, torch.float32)
    assert all(map(math.isfinite, [found.loss.item(), *slopes, *map(float, found.rewards)]))


def test_the_odds_go_on_as_their_tangent():
    """A text of probability 1 has infinite odds: beyond the bound they rise by the slope there, and are counted."""
    (edge, _), (sure, _) = at(lambda m: orpo(m, BETA), ODDS_BOUND, -1.0), at(lambda m: orpo(m, BETA), 0.0, 0.0)
    assert (edge.bounded, sure.bounded) == (0, 2)
    rise = BETA * -ODDS_BOUND / -math.expm1(ODDS_BOUND)
    assert float(sure.rewards.chosen - edge.rewards.chosen) == pytest.approx(rise, rel=EXACT)
