"""REINFORCE++: PPO's clipped surrogate without a critic, its advantages normalised over the whole step.

    A_it = Σ_{n≥t} r_in      r: the score at the last token, minus beta × the KL's charge at each
    A ← (A − mean A)/σ(A)    over every token of the step, not of a group

`baseline = "group"` is REINFORCE++-baseline: the mean of the *other* completions of the prompt comes off the score
first (the paper takes the group's own mean; with no KL in the advantage the two differ by the factor 1 − 1/G, which the
normalisation takes out). As published the KL is k1 in the reward: with no [kl] in the config that is the penalty.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import ConfigDict

from kleash.algorithms.checks import check_updates
from kleash.algorithms.clip import Clip, sides
from kleash.algorithms.group_relative import Loss, Totals, weigh_groups
from kleash.algorithms.off_policy import corrected, off_policy_ratios
from kleash.errors import UsageError
from kleash.kl.penalties import Penalty
from kleash.kl.ratios import Ratios
from kleash.masked import whiten
from kleash.rl.advantages import leave_one_out
from kleash.rl.gae import generalised_advantages, token_rewards
from kleash.rl.policy_losses import clipped_surrogate, reduce_tokens
from kleash.tensors import Batch, Credit, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePP:
    """group_size completions a prompt (one is enough without a baseline); `epochs` × `minibatches` updates.

    whiten: the step's advantages get mean 0 and standard deviation 1; the KL's own term is divided by that deviation.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["reinforce++"] = "reinforce++"
    group_size: int = 1
    baseline: Literal["none", "group"] = "none"
    whiten: bool = True
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = 0.2
    prefix_cap: float = 5.0

    def __post_init__(self) -> None:
        check_updates(self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")
        if self.group_size < 1:
            raise UsageError(f"algorithm.group_size = {self.group_size} must be at least 1")
        if self.baseline == "group" and self.group_size < 2:
            raise UsageError(
                'algorithm.baseline = "group" is the mean of the *other* completions of a prompt: set '
                "algorithm.group_size to at least 2"
            )

    @property
    def label(self) -> str:
        if self.whiten:
            return "the gradient of a sequence objective, divided by the standard deviation of the step's advantages"
        return "the gradient of a sequence objective"

    def credit(self, look: Look, batch: Batch, penalty: Penalty, beta: float) -> Credit:
        """The return to go of every token, from the look before the step's first update.

        Source: Hu et al. 2025 (REINFORCE++), arXiv 2501.03262 §3.
        Proved by: tests/training/test_critic_free.py::test_reinforce_pp_is_the_sequence_gradient
        """
        score, one = batch.score, torch.ones_like(look.logprobs)
        if self.baseline == "group":
            score = leave_one_out(score, batch.scored, batch.rollout.group)
        to_go = penalty.terms(look, batch.mask, Ratios(one, one, one)).to_go
        reward = token_rewards(score, to_go, batch.mask, beta)
        advantage = generalised_advantages(
            reward, torch.zeros_like(one), batch.mask, gamma=1.0, gae_lambda=1.0
        ).advantage
        white = whiten(advantage, batch.mask) if self.whiten else (advantage, 1.0)
        return Credit(*white)

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/(N·G·C) Σ m_t [ −min(ρ_t A_t, clip(ρ_t) A_t) + β own_t / σ ].

        Source: Hu et al. 2025 (REINFORCE++), arXiv 2501.03262 §3; KL terms: docs/kl.md §4.
        Proved by: tests/training/test_critic_free.py::test_reinforce_pp_is_the_sequence_gradient
        """
        mask, credit = batch.mask, batch.credit
        assert credit is not None, "the loop asks for the credit before any loss"
        ratios = off_policy_ratios(look, batch, penalty, self.prefix_cap)
        surrogate = clipped_surrogate(ratios.token, credit.advantage, sides(self.clip))
        own = penalty.terms(look, mask, ratios.charges).own
        losses = corrected(surrogate.loss, batch)
        if own is not None:
            losses = losses + beta * credit.scale * own
        value = reduce_tokens(
            weigh_groups(losses, batch),
            mask,
            "constant",
            sequences=totals.sequences,
            tokens=totals.tokens,
            constant=totals.constant,
        )
        return Loss(value, int((surrogate.clipped & mask).sum()), ratios.truncations)
