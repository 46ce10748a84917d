"""What GRPO and RLOO share: credit from the other members of the group, and one loss per token.

    loss_it = −r_i ρ_it (R_i − b_i)                           clipped as in PPO
              + β k_i [ own_it + (F_it − ρ_{1:t} f_it) ℓ_it ]    outside the clip: the leash never lets go

r, k are the algorithm's scales of reward and KL, F and f the KL to come and its mean over the other members alive.
With r = k = 1, a constant length normaliser and ρ = 1 its expected gradient is −∇[E R − β KL(policy‖reference)] / C,
the KL being that of the sequence.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.kl.penalties import Penalty, Ratios
from kleash.rl.advantages import group_sum, leave_one_out, leave_one_out_alive
from kleash.rl.policy_losses import PrefixRatios, clipped_surrogate, prefix_ratios
from kleash.tensors import Batch, Look

#: How updates after the first treat samples of the older policy. The KL's gradient carries its prefix ratios in both.
#: "truncated": these are truncated at `prefix_cap`, and the reward's credit has PPO's clipped token ratio.
#: "full": no truncation, and the reward's credit has every ratio too: the exact off-policy gradient, and noisy.
OffPolicy = Literal["truncated", "full"]

#: PPO's clip range, or "none".
Clip = float | Literal["none"]


class Totals(NamedTuple):
    """Of the whole minibatch, so that microbatches add up: sequences and tokens in the loss, the length constant C."""

    sequences: int
    tokens: int
    constant: int
    score_std: float


class Scales(NamedTuple):
    """Factors of the reward's credit and of both KL terms, per row."""

    reward: Float[Tensor, " B"]
    kl: Float[Tensor, " B"]


class TokenLosses(NamedTuple):
    """per_token is live; `clipped` and `truncations` count tokens of the mask."""

    per_token: Float[Tensor, "B T"]
    clipped: int
    truncations: int


class ValueFigures(NamedTuple):
    """Of a value function's loss: its sum over tokens, and the tokens at which its clip cut the gradient."""

    loss: float
    clipped: int


class Loss(NamedTuple):
    """The number to differentiate, and what was bounded on the way; `values` where there is a value function."""

    value: Float[Tensor, ""]
    clipped: int
    truncations: int
    values: ValueFigures | None = None


class UpdateRule(NamedTuple):
    """How the update may move: the clip range, the cap on prefix ratios, the off-policy form."""

    clip: Clip
    prefix_cap: float
    off_policy: OffPolicy


def group_relative_losses(
    look: Look, batch: Batch, penalty: Penalty, beta: float, scales: Scales, how: UpdateRule
) -> TokenLosses:
    """Per-token losses of a policy gradient with leave-one-out credit and a KL penalty.

    Source: docs/kl.md §4–5; RLOO: Ahmadian et al. 2024, arXiv 2402.14740.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    mask, full = batch.mask, how.off_policy == "full"
    old = look.logprobs.detach() if batch.old is None else batch.old
    ratios = prefix_ratios(look.logprobs, old, mask, cap=None if full else how.prefix_cap)
    advantage = leave_one_out(batch.score, batch.scored, batch.rollout.group)[:, None].expand(mask.shape)
    if full:
        losses, clipped = _full_reward(look, batch, advantage, ratios), 0
    else:
        surrogate = clipped_surrogate(ratios.token, advantage, None if how.clip == "none" else how.clip)
        losses, clipped = surrogate.loss, int((surrogate.clipped & mask).sum())

    losses = scales.reward[:, None] * losses
    kl = penalty.terms(look, mask, Ratios(ratios.token, ratios.before, ratios.through))
    if kl.own is not None:
        losses = losses + beta * scales.kl[:, None] * kl.own
    if kl.to_go is not None:
        credit = leave_one_out_alive(kl.to_go, mask, batch.rollout.group, ratios.through)
        losses = losses + beta * scales.kl[:, None] * credit * look.logprobs
    return TokenLosses(losses, clipped, ratios.truncations)


def _full_reward(
    look: Look, batch: Batch, advantage: Float[Tensor, "B T"], ratios: PrefixRatios
) -> Float[Tensor, "B T"]:
    """−[ρ_{1:T} R − ρ_{1:t} b] ℓ_t; ratios are 1 outside the mask, so the last column is ρ_{1:T}.

    A member with no other scored one beside it has no baseline, and so no credit.
    """
    score = batch.score[:, None]
    baseline = score - advantage
    others = group_sum(batch.scored.to(score.dtype), batch.rollout.group)[:, None] - 1
    credit = torch.where(others > 0, ratios.through[:, -1:] * score - ratios.through * baseline, 0.0)
    return -credit * look.logprobs


def weigh_groups(per_token: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
    """Each row times the weight of its prompt group.

    Source: the definition of `Rollout.weight`.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    weight = batch.rollout.weight
    return per_token if weight is None else per_token * weight[batch.rollout.group][:, None]


def ones(batch: Batch) -> Float[Tensor, " B"]:
    """Scale 1 for every row.

    Source: the definition.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    return torch.ones_like(batch.score)
