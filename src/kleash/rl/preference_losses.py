"""Preference losses that hold the reference: functions of each text's log-ratio Σ_t log π − log π_ref, in nats.

`ratio` is that sum (or a mean over tokens, where a paper has it), [N] for either side. beta is the price of KL: units
of reward per nat; Δ = β (chosen − rejected) is the margin. Each returns a loss of each pair, live, and the implicit
rewards. What the optimum of each is, over a population of labelled pairs, stands in docs/preferences.md.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from kleash.rl.pair_sums import PairLoss, Sides

#: What a text's log-ratio is: the sum over its tokens, or their mean.
Length = Literal["sum", "mean"]
#: Which divergence to the reference f-DPO charges, named from the policy: reverse_kl is KL(policy‖reference).
Divergence = Literal["reverse_kl", "forward_kl", "js", "alpha"]

#: Where f-DPO's exponential e^x goes on as its tangent. e²⁰ = 4.9e8: a text that has become so much less likely than
#: under the reference; the loss of such a pair is finite in fp32 for any beta, and its gradient still points back.
EXPONENT_BOUND = 20.0


def dpo(ratio: Sides, beta: float) -> PairLoss:
    """−log σ(Δ). rewards: β·ratio.

    Finite, with a finite gradient, at any finite margin.

    Source: Rafailov et al. 2023 (DPO), arXiv 2305.18290 eq. 7; the mean over tokens: Lambert et al. 2024 (Tülu 3,
        length-normalised DPO), arXiv 2411.15124.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_dpo_ends_at_the_gibbs_posterior
    """
    return PairLoss(-logsigmoid(beta * ratio.margin), _scaled(ratio, beta))


def conservative_dpo(ratio: Sides, beta: float, flip: float) -> PairLoss:
    """−(1 − ε) log σ(Δ) − ε log σ(−Δ), ε = flip: a share ε of the labels is held to be wrong. rewards: β·ratio.

    Source: Mitchell 2023, A note on DPO with noisy preferences (cDPO), https://ericmitchell.ai/cdpo.pdf
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_conservative_dpo_ends_at_the_posterior_of_smoothed_labels
    """
    margin = beta * ratio.margin
    return PairLoss(-(1 - flip) * logsigmoid(margin) - flip * logsigmoid(-margin), _scaled(ratio, beta))


def robust_dpo(ratio: Sides, beta: float, flip: float) -> PairLoss:
    """[−(1 − ε) log σ(Δ) + ε log σ(−Δ)] / (1 − 2ε): over labels of which a share ε was flipped, DPO's on the true ones.

    Unbiased, and unbounded below: as Δ grows the loss of a pair falls like −ε Δ/(1 − 2ε). rewards: β·ratio.

    Source: Chowdhury et al. 2024 (rDPO), arXiv 2403.00409.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_robust_dpo_sees_through_the_noise
    """
    margin = beta * ratio.margin
    loss = (-(1 - flip) * logsigmoid(margin) + flip * logsigmoid(-margin)) / (1 - 2 * flip)
    return PairLoss(loss, _scaled(ratio, beta))


def ipo(ratio: Sides, beta: float) -> PairLoss:
    """(chosen − rejected − 1/(2β))². rewards: β·ratio. β is the paper's τ.

    Source: Azar et al. 2023 (IPO), arXiv 2310.12036 eq. 17.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_ipo_ends_at_the_posterior_of_the_win_rate
    """
    return PairLoss((ratio.margin - 1 / (2 * beta)).square(), _scaled(ratio, beta))


def hinge(ratio: Sides, beta: float) -> PairLoss:
    """max(0, 1 − Δ): no gradient once the margin is 1. rewards: β·ratio.

    Source: Liu et al. 2023 (RSO, hinge-norm), arXiv 2309.06657; without the reference: SLiC-HF, arXiv 2305.10425.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula
    """
    return PairLoss(relu(1 - beta * ratio.margin), _scaled(ratio, beta))


def exo(ratio: Sides, beta: float, smoothing: float) -> PairLoss:
    """KL(q ‖ p) with q = (σ(Δ), σ(−Δ)), p = (1 − ε, ε), ε = smoothing. rewards: β·ratio.

    cDPO's is KL(p ‖ q), up to a constant. Here the gradient vanishes as q saturates, on the wrong side too.

    Source: Ji et al. 2024 (EXO, K = 2), arXiv 2402.00856 eq. 16.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_a_pairs_margin_under_exo
    """
    margin = beta * ratio.margin
    won, lost = logsigmoid(margin), logsigmoid(-margin)
    loss = won.exp() * (won - math.log1p(-smoothing)) + lost.exp() * (lost - math.log(smoothing))
    return PairLoss(loss, _scaled(ratio, beta))


def f_dpo(ratio: Sides, beta: float, divergence: Divergence, alpha: float | None = None) -> PairLoss:
    """−log σ(β f′(u_chosen) − β f′(u_rejected)), u = π/π_ref of the text. rewards: β·f′(u).

    f′(u): reverse_kl log u (DPO), forward_kl 1 − 1/u, js log 2u/(1 + u), alpha (1 − u^−α)/α with 0 < α < 1, which goes
    from reverse (α → 0) to forward (α → 1). Beyond EXPONENT_BOUND the power of u goes on as its tangent; `bounded`
    counts those texts.

    Source: Wang et al. 2023 (f-DPO), arXiv 2309.16240 table 1.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula,
        tests/rl/test_preference_optima.py::test_f_dpo_ends_at_its_own_posterior
    """
    if divergence in ("reverse_kl", "js"):
        of = (lambda x: math.log(2.0) + logsigmoid(x)) if divergence == "js" else (lambda x: x)
        score, bounded = Sides(of(ratio.chosen), of(ratio.rejected)), 0
    else:
        order = 1.0 if alpha is None else alpha
        exponent = Sides(-order * ratio.chosen, -order * ratio.rejected)
        score = Sides(-_expm1(exponent.chosen) / order, -_expm1(exponent.rejected) / order)
        bounded = sum(int((side > EXPONENT_BOUND).sum()) for side in exponent)
    return PairLoss(-logsigmoid(beta * score.margin), _scaled(score, beta), bounded)


def _expm1(x: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """e^x − 1, beyond EXPONENT_BOUND its tangent there."""
    beyond = x > EXPONENT_BOUND
    plain = torch.expm1(torch.where(beyond, 0.0, x))  # an overflow in a branch not taken would be a NaN in the gradient
    tangent = math.expm1(EXPONENT_BOUND) + math.exp(EXPONENT_BOUND) * (x - EXPONENT_BOUND)
    return torch.where(beyond, tangent, plain)


def _scaled(values: Sides, by: float) -> Sides:
    return Sides(by * values.chosen.detach(), by * values.rejected.detach())
