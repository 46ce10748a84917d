"""What GRPO and RLOO share: credit from the other members of the group, and one loss per token.

    A_it = r_i (R_i − b_i) − β k (F_it − f_it)          r, k: the algorithm's scales of reward and KL
    loss_it = −A_it ρ_it + β k own_it                    clipped as in PPO; the KL's own term stays outside the clip

With r = k = 1, a constant length normaliser and ρ = 1 its expected gradient is −∇[E R − β KL(policy‖reference)] / C,
the KL being that of the sequence.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.kl.penalties import KLTerms, Penalty, Ratios
from kleash.rl.advantages import leave_one_out, leave_one_out_alive
from kleash.rl.policy_losses import PrefixRatios, clipped_surrogate, prefix_ratios
from kleash.tensors import Batch, Look

#: "truncated": token ratio on the surrogate, ρ_{<t} truncated at `prefix_cap` on the KL, KL-to-go from the live
#: policy: exact at ρ = 1, first order after. "full": every ratio as the off-policy gradient demands: exact, noisy.
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


class Loss(NamedTuple):
    """The number to differentiate, and what was bounded on the way."""

    value: Float[Tensor, ""]
    clipped: int
    truncations: int


class Step(NamedTuple):
    """How the update may move: the clip range, the cap on prefix ratios, the off-policy form."""

    clip: Clip
    prefix_cap: float
    off_policy: OffPolicy


def group_relative_losses(
    look: Look, batch: Batch, penalty: Penalty, beta: float, scales: Scales, how: Step
) -> TokenLosses:
    """Per-token losses of a policy gradient with leave-one-out credit and a KL penalty.

    Source: docs/kl.md §4–5; RLOO: Ahmadian et al. 2024, arXiv 2402.14740.
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    mask, group = batch.mask, batch.rollout.group
    full = how.off_policy == "full"
    old = look.logprobs.detach() if batch.old is None else batch.old
    ratios = prefix_ratios(look.logprobs, old, mask, cap=None if full else how.prefix_cap)
    kl = penalty.terms(look, mask, Ratios(ratios.token, ratios.before, ratios.token.detach() if full else None))

    reward = leave_one_out(batch.score, batch.scored, group)[:, None].expand(mask.shape)
    if full:
        reward = reward + (_ratio_after(ratios) - 1) * batch.score[:, None]
    credit = scales.reward[:, None] * reward
    if kl.to_go is not None:
        credit = credit - beta * scales.kl[:, None] * leave_one_out_alive(kl.to_go, mask, group)

    if full:
        losses, clipped = -(ratios.before * ratios.token.detach() * credit) * look.logprobs, 0
    else:
        surrogate = clipped_surrogate(ratios.token, credit, None if how.clip == "none" else how.clip)
        losses, clipped = surrogate.loss, int((surrogate.clipped & mask).sum())
    return TokenLosses(_with_own_term(losses, kl, beta, scales), clipped, ratios.truncations)


def _ratio_after(ratios: PrefixRatios) -> Float[Tensor, "B T"]:
    """ρ_{t+1:T}; ratios are 1 outside the mask."""
    through = ratios.before * ratios.token.detach()
    return through[:, -1:] / through


def _with_own_term(losses: Float[Tensor, "B T"], kl: KLTerms, beta: float, scales: Scales) -> Float[Tensor, "B T"]:
    return losses if kl.own is None else losses + beta * scales.kl[:, None] * kl.own


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
