"""GRPO: the group's own mean as the baseline, computed as leave-one-out times c = 1 − 1/G.

R_i − mean(R) = c (R_i − b_i) exactly, so reward, KL to come and the KL's own term all carry the same c and beta keeps
its meaning. The defaults divide by no standard deviation and by a constant length: with penalty = "exact" the
expected gradient is c times that of  E reward − beta · KL(policy‖reference)  of the sequence.

So `kind = "grpo"` with nothing else is Dr. GRPO, plus the leash it leaves out. GRPO's own paper has `std = "group"`,
`length = "sequence_mean"` and `kl.penalty = { kind = "in_loss", estimator = "k3", ratio = "none" }`; docs/kl.md §6 says
what each does to the gradient.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from kleash.algorithms.checks import check_group_relative
from kleash.algorithms.clip import Clip
from kleash.algorithms.group_relative import Form, Loss, OffPolicy, Std, Totals, UpdateRule, group_relative_loss
from kleash.kl.penalties import Penalty
from kleash.rl.policy_losses import Length
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """group_size completions a prompt; `epochs` × `minibatches` updates a step, clipped as in PPO ("none": not).

    std: "none"; "batch": all three terms divided by one standard deviation of the step's scores (beta keeps its
    meaning relative to the reward); "group": the reward's credit alone divided by its group's (as published: the
    effective beta is then beta·σ of the group, and a group without spread gives no reward gradient).
    length: how token losses are averaged; only "constant" is the gradient of a sequence objective.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["grpo"] = "grpo"
    group_size: int = 8
    std: Std = "none"
    length: Length = "constant"
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
        return Form(self.std, self.length).label

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """c/(N·G·C) Σ m_it [ −A_it ρ_it + β own_it ] with the default std and length.

        Source: Shao et al. 2024, arXiv 2402.03300; Dr. GRPO: Liu et al. 2025, arXiv 2503.20783; docs/kl.md §4.
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        how = UpdateRule(self.clip, self.prefix_cap, self.off_policy)
        return group_relative_loss(look, batch, totals, penalty, beta, Form(self.std, self.length), how)
