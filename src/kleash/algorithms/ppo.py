"""PPO with a critic: each token is credited with what it turned out to be worth more than the critic expected.

    r_t = 1[last]·R − β (charge of the KL)            k1: x_t at its own token; exact: K_{t+1}, the state it led to
    A_t = Σ (γλ)^k δ_{t+k},  δ_t = r_t + γ V_{t+1} − V_t
    loss_t = −min(ρ_t A_t, clip(ρ_t) A_t) + β own_t + β_old k3(old‖π) + vf_coef · ½ (V_t − A_t − V_t^old)²

Rewards, advantages and returns are computed once a step, before its first update. The KL's own term (K_t, for the
exact penalty) stands outside the clip. β_old is there with a `step_penalty`, a language-model loss with `ptx`. With
γ = λ = 1 and no whitening the expected gradient of the first update is −∇[E R − β KL(policy‖reference)] / C for *any*
values: they are a baseline. The defaults are the published ones, which are not that gradient (docs/ppo.md).
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.algorithms.checks import check_updates
from kleash.algorithms.clip import Clip, sides
from kleash.algorithms.group_relative import Loss, OffPolicy, Totals, ValueFigures, weigh_groups
from kleash.algorithms.off_policy import corrected, off_policy_ratios
from kleash.algorithms.ptx import Ptx
from kleash.algorithms.step_penalty import StepPenalty
from kleash.errors import UsageError
from kleash.kl.penalties import Penalty
from kleash.kl.ratios import Ratios
from kleash.masked import whiten
from kleash.records import Reading
from kleash.rl.gae import Advantages, generalised_advantages, token_rewards
from kleash.rl.policy_losses import clipped_surrogate, reduce_tokens
from kleash.rl.value_losses import clipped_value_loss
from kleash.tensors import Batch, Credit, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class PPO:
    """group_size completions a prompt (one is enough: the critic is the baseline); `epochs` × `minibatches` updates.

    whiten: the step's advantages get mean 0 and standard deviation 1; the KL's own term is divided by that deviation
    too, so that beta keeps its meaning relative to the reward.
    step_kl_limit: nats per sequence of kl_old at which a step's updates end: a step size, never the leash.
    step_penalty: PPO's adaptive penalty on kl_old, in the place of the clip (clip = "none") or beside it.
    ptx: a language-model loss on texts of their own, added to each update.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["ppo"] = "ppo"
    group_size: int = 1
    epochs: int = 4
    minibatches: int = 1
    clip: Clip = 0.2
    clip_value: float | Literal["none"] = 0.2
    gamma: float = 1.0
    gae_lambda: float = 0.95
    vf_coef: float = 0.1
    whiten: bool = True
    step_kl_limit: float | None = None
    step_penalty: StepPenalty | None = None
    ptx: Ptx | None = None
    prefix_cap: float = 5.0
    off_policy: OffPolicy = "truncated"

    def __post_init__(self) -> None:
        check_updates(self.epochs, self.minibatches, self.clip, self.prefix_cap, self.off_policy)
        if self.group_size < 1:
            raise UsageError(f"algorithm.group_size = {self.group_size} must be at least 1")
        if not (self.clip_value == "none" or self.clip_value > 0):
            raise UsageError(f'algorithm.clip_value = {self.clip_value} must be above 0 ("none" for no clip)')
        if not (0 < self.gamma <= 1 and 0 <= self.gae_lambda <= 1):
            raise UsageError(
                f"algorithm.gamma = {self.gamma} must be above 0 and at most 1, and gae_lambda = {self.gae_lambda} "
                "from 0 to 1"
            )
        if self.vf_coef < 0:
            raise UsageError(f"algorithm.vf_coef = {self.vf_coef} must be at least 0")
        if self.step_kl_limit is not None and not self.step_kl_limit > 0:
            raise UsageError(f"algorithm.step_kl_limit = {self.step_kl_limit} nats/sequence must be above 0")
        if self.step_penalty is not None and self.epochs * self.minibatches == 1:
            raise UsageError(
                "algorithm.step_penalty has nothing to price with one update a step, at which the policy has not moved "
                "yet: set epochs or minibatches above 1, or leave it out"
            )
        if self.off_policy == "full" and self.whiten:
            raise UsageError(
                'algorithm.off_policy = "full" computes each update\'s advantages anew, and whitening belongs to a '
                "step's: set whiten = false too"
            )

    @property
    def label(self) -> str:
        if self.whiten or self.gamma < 1 or self.gae_lambda < 1:
            return "not the gradient of a sequence objective (whitening, or gamma or gae_lambda below 1; docs/ppo.md)"
        return "the gradient of a sequence objective, the critic's values being its baseline"

    def is_beyond(self, kl_old: Reading) -> bool:
        """Past step_kl_limit.

        Source: early stopping in Spinning Up's PPO (target_kl) and TRL's up to 0.11; here without their factor 1.5.
        Proved by: tests/training/test_ppo_run.py::test_step_kl_limit_ends_the_updates
        """
        return self.step_kl_limit is not None and kl_old.value > self.step_kl_limit

    def credit(self, look: Look, batch: Batch, penalty: Penalty, beta: float) -> Credit:
        """Advantages and returns of the whole step, from the values before its first update.

        Source: Schulman et al. 2017, arXiv 1707.06347; the KL in the reward: Ziegler et al. 2019, arXiv 1909.08593.
        Proved by: tests/training/test_ppo_gradient.py::test_gradient_through_the_loop
        """
        values = _values(look)
        found = self._advantages(look, batch, penalty, beta, values)
        if not self.whiten:
            return Credit(found.advantage, 1.0, found.returns, values)
        white = whiten(found.advantage, batch.mask)
        return Credit(white.value, white.scale, found.returns, values)

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/(N·G·C) Σ m_t [ surrogate_t + β own_t + β_old k3_t + vf_coef · value_t ].

        Source: Schulman et al. 2017, arXiv 1707.06347 eq. 7, 9; KL terms: docs/ppo.md.
        Proved by: tests/training/test_ppo_gradient.py::test_gradient_through_the_loop
        """
        mask, credit, full = batch.mask, batch.credit, self.off_policy == "full"
        assert credit is not None, "the loop asks for the credit before any loss"
        assert credit.values is not None
        assert credit.returns is not None
        ratios = off_policy_ratios(look, batch, penalty, None if full else self.prefix_cap)
        if full:
            advantage = self._advantages(look, batch, penalty, beta, credit.values, ratios.charges).advantage
            losses, clipped = -ratios.charges.through * advantage * look.logprobs, 0
        else:
            surrogate = clipped_surrogate(ratios.token, credit.advantage, sides(self.clip))
            losses, clipped = corrected(surrogate.loss, batch), int((surrogate.clipped & mask).sum())
        own = penalty.terms(look, mask, ratios.charges).own
        if own is not None:
            losses = losses + beta * credit.scale * own
        bound = None if self.clip_value == "none" else self.clip_value
        if self.step_penalty is not None:
            losses = losses + self.step_penalty.terms(ratios.old, look.logprobs)
        value = clipped_value_loss(_values(look, live=True), credit.values, credit.returns, bound)

        def reduced(per_token: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
            return reduce_tokens(
                weigh_groups(per_token, batch),
                mask,
                "constant",
                sequences=totals.sequences,
                tokens=totals.tokens,
                constant=totals.constant,
            )

        figures = ValueFigures(
            float(torch.where(mask, value.loss.detach(), 0.0).sum()), int((value.clipped & mask).sum())
        )
        return Loss(reduced(losses + self.vf_coef * value.loss), clipped, ratios.truncations, figures)

    def _advantages(
        self,
        look: Look,
        batch: Batch,
        penalty: Penalty,
        beta: float,
        values: Float[Tensor, "B T"],
        ratios: Ratios | None = None,
    ) -> Advantages:
        """From this look's KL; with ratios, of the policy that looks rather than of the one that sampled."""
        one = torch.ones_like(values)
        to_go = penalty.terms(look, batch.mask, Ratios(one, one, one)).to_go
        return generalised_advantages(
            token_rewards(batch.score, to_go, batch.mask, beta),
            values,
            batch.mask,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            importance=None if ratios is None else ratios.token.detach(),
        )


def _values(look: Look, *, live: bool = False) -> Float[Tensor, "B T"]:
    assert look.values is not None, "a run of PPO has a critic: training/config.py writes one out"
    return look.values if live else look.values.detach()
