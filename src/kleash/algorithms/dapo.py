"""DAPO: a higher upper clip, the mean over tokens, no group without spread, and a soft punishment of overlong answers.

Its four parts are four fields; a run whose fields are others says so at its start. As published it has no KL: with no
[kl] in the config it trains without a leash, and the KL is measured all the same.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict

from kleash.algorithms.checks import check_group_relative
from kleash.algorithms.clip import Clip, ClipRange
from kleash.algorithms.group_relative import Form, Loss, Std, Totals, UpdateRule, group_relative_loss
from kleash.errors import UsageError
from kleash.kl.penalties import Penalty
from kleash.rl.policy_losses import Length
from kleash.tensors import Batch, Look


@dataclass(frozen=True, slots=True, kw_only=True)
class DAPO:
    """As GRPO, with the settings of its paper; the paper makes 16 updates a step (`minibatches = 16`).

    max_draws: groups whose raw scores are all equal are replaced by those of fresh prompts, until a step has drawn so
    many times its prompts; 1: none is replaced.
    overlong: share of max_new_tokens over whose last tokens the punishment rises from 0 to −1; 0: no punishment.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["dapo"] = "dapo"
    group_size: int = 16
    std: Std = "group"
    length: Length = "token_mean"
    epochs: int = 1
    minibatches: int = 1
    clip: Clip = field(default_factory=lambda: ClipRange(low=0.2, high=0.28))
    prefix_cap: float = 5.0
    max_draws: int = 10
    overlong: float = 0.2

    def __post_init__(self) -> None:
        check_group_relative(self.group_size, self.epochs, self.minibatches, self.clip, self.prefix_cap, "truncated")
        if self.max_draws < 1:
            raise UsageError(
                f"algorithm.max_draws = {self.max_draws} must be at least 1, which replaces no group (10 is usual)"
            )
        if not 0 <= self.overlong <= 1:
            raise UsageError(
                f"algorithm.overlong = {self.overlong} is a share of max_new_tokens and must lie between 0 (no "
                "punishment) and 1"
            )

    @property
    def label(self) -> str:
        return Form(self.std, self.length).label

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss:
        """1/Σ|y| Σ −min(ρ_it A_i, clip(ρ_it, 1−ε_low, 1+ε_high) A_i), and the KL's terms.

        Source: Yu et al. 2025 (DAPO), arXiv 2503.14476 eq. 8–13; settings: its §4.1.
        Proved by: tests/algorithms/test_variants.py::test_loss_equals_the_papers_slow_loop
        """
        how = UpdateRule(self.clip, self.prefix_cap)
        return group_relative_loss(look, batch, totals, penalty, beta, Form(self.std, self.length), how)
