"""What the group-relative family shares: credit from the other members of the group, and one loss per token.

    loss_it = −r_i ρ_it (R_i − b_i)                           bounded by the algorithm's surrogate
              + β k_i [ own_it + (F_it − ρ_{1:t} f_it) ℓ_it ]    outside the clip: the leash never lets go

r, k are the algorithm's scales of reward and KL, F and f the KL to come and its mean over the other members alive.
With r = k = 1, a constant length normaliser and ρ = 1 its expected gradient is −∇[E R − β KL(policy‖reference)] / C,
the KL being that of the sequence.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.algorithms.clip import Clip, sides
from kleash.algorithms.off_policy import OffPolicyRatios, corrected, off_policy_ratios
from kleash.kl.penalties import Penalty
from kleash.rl.advantages import group_std, group_sum, leave_one_out, leave_one_out_alive
from kleash.rl.policy_losses import (
    Length,
    Surrogate,
    clipped_surrogate,
    reduce_tokens,
    sequence_ratio,
    weighted_logprobs,
)
from kleash.tensors import Batch, Look

#: How updates after the first treat samples of the older policy. The KL's gradient carries its prefix ratios in both.
#: "truncated": these are truncated at `prefix_cap`, and the reward's credit has PPO's clipped token ratio.
#: "full": no truncation, and the reward's credit has every ratio too: the exact off-policy gradient, and noisy.
OffPolicy = Literal["truncated", "full"]

#: What bounds the reward's credit after the first update. "token": PPO's clipped token ratio. "sequence": the same
#: with GSPO's ratio of the whole sequence. "weight": CISPO's bounded, stop-gradient ratio on the log-prob.
RatioForm = Literal["token", "sequence", "weight"]

#: What the credit is divided by. "none"; "batch": all three terms by one standard deviation of the step's scores;
#: "group": the reward's credit alone by its group's.
Std = Literal["none", "batch", "group"]


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
    """How the update may move: the clip range, the cap on prefix ratios, the off-policy form, what is clipped."""

    clip: Clip
    prefix_cap: float
    off_policy: OffPolicy = "truncated"
    ratio: RatioForm = "token"


class Form(NamedTuple):
    """What the credit is divided by, and how token losses are averaged."""

    std: Std
    length: Length

    @property
    def label(self) -> str:
        """What the expected gradient of this form is, in words."""
        if self.std == "group" or self.length != "constant":
            return "not the gradient of a sequence KL (std by group or averaging by length; see docs/kl.md §6)"
        return "the gradient of a sequence objective, times 1 − 1/G"


def group_relative_loss(
    look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float, form: Form, how: UpdateRule
) -> Loss:
    """GRPO's family: c/(N·G·C) Σ m_it [ −A_it ρ_it + β own_it ] with c = 1 − 1/G, or its forms with std and lengths.

    Source: Shao et al. 2024, arXiv 2402.03300; Dr. GRPO: Liu et al. 2025, arXiv 2503.20783; docs/kl.md §4.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    losses = group_relative_losses(look, batch, penalty, beta, _scales(batch, totals, form.std), how)
    value = reduce_tokens(
        weigh_groups(losses.per_token, batch),
        batch.mask,
        form.length,
        sequences=totals.sequences,
        tokens=totals.tokens,
        constant=totals.constant,
    )
    return Loss(value, losses.clipped, losses.truncations)


def _scales(batch: Batch, totals: Totals, std: Std) -> Scales:
    members = group_sum(batch.scored.to(batch.score.dtype), batch.rollout.group)
    c = 1 - 1 / members.clamp_min(1)  # a group with nothing scored has no loss
    if std == "batch" and totals.score_std > 0:
        c = c / totals.score_std
    if std != "group":
        return Scales(reward=c, kl=c)
    sigma = group_std(batch.score, batch.scored, batch.rollout.group)
    return Scales(reward=c * torch.where(sigma > 0, 1 / torch.where(sigma > 0, sigma, 1.0), 0.0), kl=c)


def group_relative_losses(
    look: Look,
    batch: Batch,
    penalty: Penalty,
    beta: float,
    scales: Scales,
    how: UpdateRule,
    advantage: Float[Tensor, " B"] | None = None,
) -> TokenLosses:
    """Per-token losses of a policy gradient with a KL penalty. advantage: of each row; None: leave-one-out credit.

    Source: docs/kl.md §4–5; RLOO: Ahmadian et al. 2024, arXiv 2402.14740.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    mask, full = batch.mask, how.off_policy == "full"
    ratios = off_policy_ratios(look, batch, penalty, None if full else how.prefix_cap)
    if advantage is None:
        advantage = leave_one_out(batch.score, batch.scored, batch.rollout.group)
    each = advantage[:, None].expand(mask.shape)
    if full:
        losses, clipped = _full_reward(look, batch, each, ratios), 0
    else:
        surrogate = _surrogate(look, batch, ratios, each, how)
        losses, clipped = corrected(surrogate.loss, batch), int((surrogate.clipped & mask).sum())

    losses = scales.reward[:, None] * losses
    kl = penalty.terms(look, mask, ratios.charges)
    if kl.own is not None:
        losses = losses + beta * scales.kl[:, None] * kl.own
    if kl.to_go is not None:
        credit = leave_one_out_alive(kl.to_go, mask, batch.rollout.group, ratios.charges.credit)
        losses = losses + beta * scales.kl[:, None] * credit * look.logprobs
    return TokenLosses(losses, clipped, ratios.truncations)


def _surrogate(
    look: Look,
    batch: Batch,
    ratios: OffPolicyRatios,
    advantage: Float[Tensor, "B T"],
    how: UpdateRule,
) -> Surrogate:
    clip = sides(how.clip)
    if how.ratio == "weight":
        return weighted_logprobs(ratios.token, look.logprobs, advantage, clip)
    ratio = sequence_ratio(look.logprobs, ratios.old, batch.mask) if how.ratio == "sequence" else ratios.token
    return clipped_surrogate(ratio, advantage, clip)


def _full_reward(
    look: Look, batch: Batch, advantage: Float[Tensor, "B T"], ratios: OffPolicyRatios
) -> Float[Tensor, "B T"]:
    """−[ρ_{1:T} R − ρ_{1:t} b] ℓ_t; ratios are 1 outside the mask, so the last column is ρ_{1:T}.

    A member with no other scored one beside it has no baseline, and so no credit.
    """
    score = batch.score[:, None]
    baseline = score - advantage
    others = group_sum(batch.scored.to(score.dtype), batch.rollout.group)[:, None] - 1
    through = ratios.charges.through
    credit = torch.where(others > 0, through[:, -1:] * score - through * baseline, 0.0)
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
