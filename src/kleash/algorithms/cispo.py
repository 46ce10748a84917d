"""CISPO: the importance ratio is a bounded weight on the log-prob, so no token ever loses its gradient.

PPO's clip drops a token's gradient once its ratio has left the range; the rare tokens at which reasoning forks leave it
first. CISPO bounds the weight instead. As published it has no lower bound and no KL: with no [kl] in the config it
trains without a leash, and the KL is measured all the same.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from kleash.algorithms.checks import check_group_relative
from kleash.algorithms.clip import Clip, ClipRange
from kleash.algorithms.group_relative import Form, Loss, Std, Totals, UpdateRule, group_relative_loss
from kleash.kl.penalties import Penalty
from kleash.rl.policy_losses import Length
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class CISPO:
    """As GRPO, with its paper's form. The paper prints no upper bound; weights up to 5 are what ScaleRL settled on."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["cispo"] = "cispo"
    group_size: int = 8
    std: Std = "group"
    length: Length = "token_mean"
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = field(default_factory=lambda: ClipRange(low=1.0, high=4.0))
    prefix_cap: float = 5.0

    def __post_init__(self) -> None:
        check_group_relative(self.group_size, self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")

    @property
    def label(self) -> str:
        return Form(self.std, self.length).label

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/Σ|y| Σ −sg(clip(ρ_it, 1−ε_low, 1+ε_high)) A_i ℓ_it, and the KL's terms.

        Source: MiniMax 2025, arXiv 2506.13585 eq. 4–5; upper bound: Khatri et al. 2025 (ScaleRL), arXiv 2510.13786.
        Proved by: tests/algorithms/test_variants.py::test_loss_equals_the_papers_slow_loop
        """
        how = UpdateRule(self.clip, self.prefix_cap, ratio="weight")
        return group_relative_loss(look, batch, totals, penalty, beta, Form(self.std, self.length), how)
