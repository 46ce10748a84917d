"""Online DPO: pairs of the policy's own samples, labelled by their scores; the reference is in the loss.

    loss = s/(N·G·C) Σ_pairs w [ P·L(ρ_i, ρ_j) + (1 − P)·L(ρ_j, ρ_i) ]      ρ = Σ_t log π − log π_ref of a completion

P is the label's probability, made of the two scores. The leash is inside the loss (penalty "in_preference"): beta,
given or held by a controller, is its price of a nat. s = 2/beta (DPO) or beta/4 (IPO) gives the gradient the scale that
the other algorithms' have, so that a controller that moves beta moves the leash and not the length of the step.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import ConfigDict

from kleash.algorithms.checks import check_updates
from kleash.algorithms.group_relative import Loss, Totals
from kleash.errors import UsageError
from kleash.kl.penalties import Penalty
from kleash.rl.online_pairs import Compared, Labels, PairwiseLoss, compared, label_loss, preference
from kleash.tensors import Batch, Look

#: Of a bonus on the entropy alone, after a step's first update: the pairs' loss has no ratios.
PREFIX_CAP = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineDPO:
    """group_size completions a prompt; `epochs` × `minibatches` updates a step: with many of them a step is a round.

    preference: the loss of a labelled pair. labels: what its scores say of it. pairs: which completions are compared.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["online_dpo"] = "online_dpo"
    group_size: int = 2
    preference: PairwiseLoss = "dpo"
    labels: Labels = "bradley_terry"
    pairs: Compared = "all"
    epochs: int = 1
    minibatches: int = 1

    def __post_init__(self) -> None:
        check_updates(self.epochs, self.minibatches, "none", PREFIX_CAP, "truncated")
        if self.group_size < 2:
            raise UsageError(
                f"algorithm.group_size = {self.group_size}: a pair is made of two completions of a prompt, so a group "
                "needs at least 2"
            )
        if self.labels == "win_rate" and self.group_size != 2:
            raise UsageError(
                f'algorithm.labels = "win_rate" with group_size = {self.group_size}: the score of a completion is its '
                "win rate against all others, and of one pair only where there are two; use group_size = 2, or "
                'labels = "winner"'
            )

    @property
    def prefix_cap(self) -> float:
        return PREFIX_CAP

    @property
    def holds_targets(self) -> bool:
        """Whether a larger beta pulls the policy back. DPO with labels that are certain has no finite end."""
        return self.preference == "ipo" or self.labels != "winner"

    @property
    def label(self) -> str:
        if self.preference == "ipo":
            return "the gradient of a sequence objective whose reward is the win rate against the policy itself"
        if self.labels == "bradley_terry":
            return "not the gradient of a sequence objective, but zero where that is: at reference·exp(reward/beta)/Z"
        if self.labels == "win_rate":
            return "DPO's of a judge's probabilities: zero at reference·exp(reward/beta)/Z if they follow Bradley–Terry"
        return "DPO's of certain labels: no finite end, beta slows the policy and does not bring it back"

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """s/(N·G·C) Σ_pairs w [ P·L(ρ_i, ρ_j) + (1 − P)·L(ρ_j, ρ_i) ].

        Source: Guo et al. 2024 (OAIF), arXiv 2402.04792; Calandriello et al. 2024 (online IPO), arXiv 2403.08635.
        Proved by: tests/training/test_online_dpo.py::test_gradient_through_the_loop
        """
        assert look.ref is not None, "preflight guarantees a reference for a penalty that needs one"
        group, weight = batch.rollout.group, batch.rollout.weight
        ratio = torch.where(batch.mask, look.logprobs - look.ref, 0.0).sum(1)
        found = compared(batch.score, batch.scored, group, self.pairs)
        p = preference(batch.score[found.one], batch.score[found.other], self.labels)
        losses = found.weight * label_loss(ratio[found.one], ratio[found.other], p, beta, self.preference)
        if weight is not None:
            losses = losses * weight[group[found.one]]
        scale = 2 / beta if self.preference == "dpo" else beta / 4
        return Loss(scale * losses.sum() / (max(totals.sequences, 1) * totals.constant), 0, 0)
