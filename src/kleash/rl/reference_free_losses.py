"""Preference losses without a reference: functions of each text's log-prob alone. Nothing in them leashes the policy.

`mean` is a text's log-prob per token, `total` that of the whole text, in nats, [N] for either side. None of them has a
posterior of a reward as its optimum: docs/preferences.md says what they do.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from kleash.rl.pair_sums import PairLoss, Sides

#: Above this mean log-prob (a text of probability 1 − 1e-6 a token) the log-odds go on as their tangent: at 0 they have
#: a pole, which fp32 reaches.
ODDS_BOUND = -1e-6


def orpo(mean: Sides, beta: float) -> PairLoss:
    """−chosen − β log σ(logit chosen − logit rejected), logit m = m − log(1 − e^m) of a mean log-prob m.

    rewards: β·logit. `bounded` counts texts above ODDS_BOUND.

    Source: Hong et al. 2024 (ORPO), arXiv 2403.07691 eq. 4–7 (β is its λ).
    Proved by: tests/rl/test_reference_free_losses.py::test_equals_the_papers_formula
    """
    logit = Sides(_logit(mean.chosen), _logit(mean.rejected))
    bounded = sum(int((side > ODDS_BOUND).sum()) for side in mean)
    rewards = Sides(beta * logit.chosen.detach(), beta * logit.rejected.detach())
    return PairLoss(-mean.chosen - beta * logsigmoid(logit.margin), rewards, bounded)


def simpo(mean: Sides, beta: float, gamma: float) -> PairLoss:
    """−log σ(β (chosen − rejected) − γ), of mean log-probs. rewards: β·mean.

    Source: Meng et al. 2024 (SimPO), arXiv 2405.14734 eq. 6.
    Proved by: tests/rl/test_reference_free_losses.py::test_equals_the_papers_formula
    """
    rewards = Sides(beta * mean.chosen.detach(), beta * mean.rejected.detach())
    return PairLoss(-logsigmoid(beta * mean.margin - gamma), rewards)


def cpo(total: Sides, mean: Sides, beta: float, nll: float) -> PairLoss:
    """−log σ(β (chosen − rejected)) of whole texts, − nll · the chosen text's mean log-prob. rewards: β·total.

    The paper prints the likelihood term over the whole text; its code averages over tokens, and so do we.

    Source: Xu et al. 2024 (CPO), arXiv 2401.08417 eq. 3–5.
    Proved by: tests/rl/test_reference_free_losses.py::test_equals_the_papers_formula
    """
    rewards = Sides(beta * total.chosen.detach(), beta * total.rejected.detach())
    return PairLoss(-logsigmoid(beta * total.margin) - nll * mean.chosen, rewards)


def _logit(m: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """m − log(1 − e^m), above ODDS_BOUND its tangent there."""
    beyond = m > ODDS_BOUND
    inside = torch.where(beyond, ODDS_BOUND, m)
    plain = inside - torch.log(-torch.expm1(inside))
    slope = -1 / math.expm1(ODDS_BOUND)
    return torch.where(beyond, plain.detach() + slope * (m - ODDS_BOUND), plain)
