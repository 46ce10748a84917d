"""RLOO: REINFORCE with a leave-one-out baseline, and the leash of your choice.

b_i is the mean score of the *other* completions of the same prompt; the KL to come is credited against what the
others alive at the same position still have to pay. Nothing is divided by a standard deviation or by a length, so
with penalty = "exact" the expected gradient is that of  E reward − beta · KL(policy‖reference)  of the sequence.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from kleash.algorithms.checks import check_group_relative
from kleash.algorithms.clip import Clip
from kleash.algorithms.group_relative import (
    Loss,
    OffPolicy,
    Scales,
    Totals,
    UpdateRule,
    group_relative_losses,
    ones,
    weigh_groups,
)
from kleash.kl.penalties import Penalty
from kleash.rl.policy_losses import reduce_tokens
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    """group_size completions a prompt; `epochs` × `minibatches` updates a step, clipped as in PPO ("none": not)."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["rloo"] = "rloo"
    group_size: int = 8
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = 0.2
    prefix_cap: float = 5.0
    off_policy: OffPolicy = "truncated"

    def __post_init__(self) -> None:
        check_group_relative(
            self.group_size, self.epochs, self.minibatches, self.clip, self.prefix_cap, self.off_policy
        )

    @property
    def label(self) -> str:
        return "the gradient of a sequence objective"

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/(N·G·C) Σ m_it [ −A_it ρ_it + β own_it ].

        Source: Ahmadian et al. 2024, arXiv 2402.14740; KL terms: docs/kl.md §4.
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        how = UpdateRule(self.clip, self.prefix_cap, self.off_policy)
        losses = group_relative_losses(look, batch, penalty, beta, Scales(ones(batch), ones(batch)), how)
        value = reduce_tokens(
            weigh_groups(losses.per_token, batch),
            batch.mask,
            "constant",
            sequences=totals.sequences,
            tokens=totals.tokens,
            constant=totals.constant,
        )
        return Loss(value, losses.clipped, losses.truncations)
