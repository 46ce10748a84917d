"""ReMax: REINFORCE whose baseline is the score of the prompt's greedy completion. No critic, no group.

    loss_it = −ρ_it (R_i − R(greedy))  + β [ own_it + (F_it − ρ_{1:t} f_it) ℓ_it ]

The greedy completion is decoded beside the samples and scored by the same rewards. It is never trained on, and does not
depend on what was sampled, so the expected gradient stays that of the objective, whatever it scores. The baseline is of
the score alone: the KL to come is credited against the other members of a group alive at the same token, if there are
any, and otherwise charged as it is. (In the authors' code too the baseline has no KL in it.)
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict

from kleash.algorithms.checks import check_updates
from kleash.algorithms.clip import Clip
from kleash.algorithms.group_relative import (
    Loss,
    Scales,
    Totals,
    UpdateRule,
    group_relative_losses,
    ones,
    weigh_groups,
)
from kleash.errors import UsageError
from kleash.kl.penalties import Penalty
from kleash.rl.policy_losses import reduce_tokens
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class ReMax:
    """group_size samples a prompt, one in the paper, and a greedy one besides; `epochs` × `minibatches` updates."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)
    needs_greedy: ClassVar[bool] = True

    kind: Literal["remax"] = "remax"
    group_size: int = 1
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = 0.2
    prefix_cap: float = 5.0

    def __post_init__(self) -> None:
        check_updates(self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")
        if self.group_size < 1:
            raise UsageError(f"algorithm.group_size = {self.group_size} must be at least 1")

    @property
    def label(self) -> str:
        return "the gradient of a sequence objective"

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/(N·G·C) Σ m_it [ −(R_i − R(greedy)) ρ_it + β own_it ], and the KL to come.

        Source: Li et al. 2023 (ReMax), arXiv 2310.10505 algorithm 1; KL terms: docs/kl.md §4.
        Proved by: tests/training/test_remax.py::test_gradient_through_the_loop
        """
        assert batch.baseline is not None, "the loop decodes the greedy completions before any loss"
        advantage = torch.where(batch.scored, batch.score - batch.baseline, 0.0)
        losses = group_relative_losses(
            look,
            batch,
            penalty,
            beta,
            Scales(ones(batch), ones(batch)),
            UpdateRule(self.clip, self.prefix_cap),
            advantage,
        )
        value = reduce_tokens(
            weigh_groups(losses.per_token, batch),
            batch.mask,
            "constant",
            sequences=totals.sequences,
            tokens=totals.tokens,
            constant=totals.constant,
        )
        return Loss(value, losses.clipped, losses.truncations)
