"""Preference losses that hold the reference: functions of each text's log-ratio Σ_t log π − log π_ref, in nats.

`ratio` is that sum (or a mean over tokens, where a paper has it), [N] for either side. beta is the price of KL: units
of reward per nat; Δ = β (chosen − rejected) is the margin. Each returns a loss of each pair, live, and the implicit
rewards. What the optimum of each is, over a population of labelled pairs, stands in docs/preferences.md.
"""

from typing import Literal

from torch.nn.functional import logsigmoid

from kleash.rl.pair_sums import PairLoss, Sides

#: What a text's log-ratio is: the sum over its tokens, or their mean.
Length = Literal["sum", "mean"]


def dpo(ratio: Sides, beta: float) -> PairLoss:
    """−log σ(Δ). rewards: β·ratio.

    Finite, with a finite gradient, at any finite margin.

    Source: Rafailov et al. 2023 (DPO), arXiv 2305.18290 eq. 7; the mean over tokens: Lambert et al. 2024 (Tülu 3,
        length-normalised DPO), arXiv 2411.15124.
    Proved by: tests/rl/test_preference_losses.py::test_equals_the_papers_formula
    """
    return PairLoss(-logsigmoid(beta * ratio.margin), _scaled(ratio, beta))


def _scaled(values: Sides, by: float) -> Sides:
    return Sides(by * values.chosen.detach(), by * values.rejected.detach())
