"""GSPO: the importance ratio of the whole sequence, to the power 1/|y|, clipped for the sequence at once.

Its ranges are small (3e-4 below, 4e-4 above) because the ratio is a geometric mean over tokens. It acts from the second
update of a step on; before, every ratio is 1 and GSPO is GRPO with `std = "group"` and `length = "sequence_mean"`.
With `std = "none"` and `length = "constant"` its first update is the gradient of a sequence objective.

The leash keeps its prefix ratios and stands outside the clip, as everywhere (docs/kl.md §5).
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
class GSPO:
    """As GRPO, with the settings of its paper; the paper makes 4 updates a step (`minibatches = 4`)."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["gspo"] = "gspo"
    group_size: int = 8
    std: Std = "group"
    length: Length = "sequence_mean"
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = field(default_factory=lambda: ClipRange(low=3e-4, high=4e-4))
    prefix_cap: float = 5.0

    def __post_init__(self) -> None:
        check_group_relative(self.group_size, self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")

    @property
    def label(self) -> str:
        return Form(self.std, self.length).label

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/G Σ −min(s_i A_i, clip(s_i, 1−ε_low, 1+ε_high) A_i), s_i = (π(y_i)/π_old(y_i))^(1/|y_i|), and the KL's.

        Source: Zheng et al. 2025, arXiv 2507.18071 eq. 5–7; settings: its §5.1.
        Proved by: tests/algorithms/test_variants.py::test_loss_equals_the_papers_slow_loop
        """
        how = UpdateRule(self.clip, self.prefix_cap, ratio="sequence")
        return group_relative_loss(look, batch, totals, penalty, beta, Form(self.std, self.length), how)
