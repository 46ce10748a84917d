"""Best-of-n (RAFT, rejection sampling): of each prompt's completions the best are kept and imitated, on a leash.

    loss = 1/(N·C) Σ_prompts Σ_i w_i Σ_t −ρ_it ℓ_it  +  β × the KL's terms of *all* completions

With `keep = "best"` the weights are on the completions with the highest score of the group, shared where several have
it; with "above_mean" on those above the group's mean, each counting the same. A group without spread teaches nothing:
it is not imitated. Without the KL the expected gradient of the first update is that of the log-likelihood of what is
kept, its distribution held fixed.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.algorithms.checks import check_group_relative
from kleash.algorithms.clip import Clip, sides
from kleash.algorithms.group_relative import Loss, Totals, weigh_groups
from kleash.algorithms.off_policy import corrected, off_policy_ratios
from kleash.kl.penalties import Penalty
from kleash.rl.advantages import group_sum, leave_one_out, leave_one_out_alive
from kleash.rl.policy_losses import clipped_surrogate, reduce_tokens
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfN:
    """group_size is n. The KL's charge is in nats per sequence, over all completions, kept or not."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["best_of_n"] = "best_of_n"
    group_size: int = 8
    keep: Literal["best", "above_mean"] = "best"
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = 0.2
    prefix_cap: float = 5.0

    def __post_init__(self) -> None:
        check_group_relative(self.group_size, self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")

    @property
    def label(self) -> str:
        kept = "the best of n" if self.keep == "best" else "those above their group's mean"
        return f"the log-likelihood of {kept}, held fixed: not the gradient of the reward; the KL's is the sequence's"

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """Imitation of the kept completions, a mean over prompts, and the KL's terms, a mean over all completions.

        Source: Dong et al. 2023 (RAFT), arXiv 2304.06767 algorithm 1; KL terms: docs/kl.md §4.
        Proved by: tests/training/test_critic_free.py::test_best_of_n_imitates_the_best_on_a_leash
        """
        mask, group = batch.mask, batch.rollout.group
        ratios = off_policy_ratios(look, batch, penalty, self.prefix_cap)
        members = group_sum(batch.scored.to(batch.score.dtype), group)
        weight = (members * self._kept(batch))[:, None].expand(mask.shape)  # a mean over prompts, as others are of rows
        surrogate = clipped_surrogate(ratios.token, weight, sides(self.clip))
        losses = corrected(surrogate.loss, batch)
        kl = penalty.terms(look, mask, ratios.charges)
        if kl.own is not None:
            losses = losses + beta * kl.own
        if kl.to_go is not None:
            losses = losses + beta * leave_one_out_alive(kl.to_go, mask, group, ratios.charges.credit) * look.logprobs
        value = reduce_tokens(
            weigh_groups(losses, batch),
            mask,
            "constant",
            sequences=totals.sequences,
            tokens=totals.tokens,
            constant=totals.constant,
        )
        return Loss(value, int((surrogate.clipped & mask).sum()), ratios.truncations)

    def _kept(self, batch: Batch) -> Float[Tensor, " B"]:
        """Weights that sum to 1 in each group with spread, and to 0 in the others."""
        group, scored = batch.rollout.group, batch.scored

        def of_group(fill: float, how: Literal["amax", "amin"]) -> Float[Tensor, " B"]:
            score = torch.where(scored, batch.score, fill)
            return torch.full_like(score, fill).scatter_reduce(0, group, score, how)[group]

        top, bottom = of_group(-torch.inf, "amax"), of_group(torch.inf, "amin")
        best = batch.score == top if self.keep == "best" else leave_one_out(batch.score, scored, group) > 0
        kept = (scored & best & (top > bottom)).to(batch.score.dtype)
        return kept / group_sum(kept, group).clamp_min(1)  # none kept: the numerator is 0 as well
