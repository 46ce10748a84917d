"""Pairs made of a prompt's own samples: which ones are compared, how likely each wins, and the loss of that label.

A pair is two completions i, j of one prompt; P is the probability that i is preferred. The loss is what a loss of pairs
is in expectation over labels drawn with P: P·L(i, j) + (1 − P)·L(j, i).
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.errors import RunError
from kleash.rl.pair_sums import Sides
from kleash.rl.preference_losses import dpo, ipo

#: Which completions of a group are compared: every two of them, or its best with its worst.
Compared = Literal["all", "best_worst"]
#: What P is made of. "bradley_terry": σ of the scores' difference. "win_rate": the score is P itself, of groups of two.
#: "winner": 1 for the higher score, 1/2 where both are equal.
Labels = Literal["bradley_terry", "win_rate", "winner"]
#: The loss of a labelled pair.
PairwiseLoss = Literal["dpo", "ipo"]
#: How far the two win rates of a pair may be from adding up to 1: float32 sums of a few probabilities.
SUM_TO_ONE = 1e-4


class Pairs(NamedTuple):
    """Rows that are compared, and how much each pair counts: those of a group together as much as its members."""

    one: Int[Tensor, " N"]
    other: Int[Tensor, " N"]
    weight: Float[Tensor, " N"]


def compared(
    score: Float[Tensor, " B"], scored: Bool[Tensor, " B"], group: Int[Tensor, " B"], which: Compared
) -> Pairs:
    """Pairs of scored completions of one prompt; a prompt with fewer than two of them has none.

    "best_worst" takes the first of the highest scores and the last of the lowest: two rows, also without spread.

    Source: Guo et al. 2024 (OAIF), arXiv 2402.04792; best and worst of a group: Xiong et al. 2024, arXiv 2312.11456.
    Proved by: tests/rl/test_online_pairs.py::test_pairs_equal_a_slow_loop
    """
    members: dict[int, list[int]] = {}
    for row, (of, counts) in enumerate(zip(group.tolist(), scored.tolist(), strict=True)):
        if counts:
            members.setdefault(of, []).append(row)
    numbers, found = score.tolist(), []
    for rows in members.values():
        if len(rows) < 2:
            continue
        if which == "best_worst":
            ordered = sorted(rows, key=lambda row: -numbers[row])  # stable: of equals the first is first, the last last
            pairs = [(ordered[0], ordered[-1])]
        else:
            pairs = [(i, j) for n, i in enumerate(rows) for j in rows[n + 1 :]]
        found += [(i, j, len(rows) / len(pairs)) for i, j in pairs]
    one, other, weight = zip(*found, strict=True) if found else ((), (), ())
    return Pairs(
        torch.tensor(one, dtype=torch.long, device=score.device),
        torch.tensor(other, dtype=torch.long, device=score.device),
        torch.tensor(weight, dtype=score.dtype, device=score.device),
    )


def preference(one: Float[Tensor, " N"], other: Float[Tensor, " N"], labels: Labels) -> Float[Tensor, " N"]:
    """P that the first of two texts is preferred, of their scores.

    Source: Bradley & Terry 1952, Biometrika 39; the others are the definition.
    Proved by: tests/rl/test_online_pairs.py::test_the_label_of_two_scores

    Raises:
        RunError: win rates that are not those of a pair.
    """
    if labels == "bradley_terry":
        return torch.sigmoid(one - other)
    if labels == "winner":
        return 0.5 + 0.5 * (one - other).sign()
    off = (one + other - 1).abs()
    if len(off) and float(off.max()) > SUM_TO_ONE:
        worst = int(off.argmax())
        raise RunError(
            f'algorithm.labels = "win_rate": the scores of a pair, {float(one[worst]):.4g} and '
            f"{float(other[worst]):.4g}, are no win rates against each other, which add up to 1. Use one judge with "
            'mode = "pairwise", weight 1 and no shape as the reward; for other scores use "bradley_terry" or "winner"'
        )
    return one


def label_loss(
    one: Float[Tensor, " N"], other: Float[Tensor, " N"], p: Float[Tensor, " N"], beta: float, loss: PairwiseLoss
) -> Float[Tensor, " N"]:
    """P·L(i, j) + (1 − P)·L(j, i) of two texts' log-ratios to the reference, in nats; L as published.

    Source: Rafailov et al. 2023 (DPO), arXiv 2305.18290 eq. 7; Azar et al. 2023 (IPO), arXiv 2310.12036 eq. 17.
    Proved by: tests/rl/test_online_pairs.py::test_the_loss_is_the_expectation_over_labels
    """
    of = dpo if loss == "dpo" else ipo
    return p * of(Sides(one, other), beta).loss + (1 - p) * of(Sides(other, one), beta).loss
