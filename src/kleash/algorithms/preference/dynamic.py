"""beta-DPO: each step's beta follows how far apart its pairs are, and pairs far from the usual gap are left out."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.algorithms.preference.anchored import text_ratio
from kleash.algorithms.preference.checks import STRICT, check_at_least_zero, check_positive
from kleash.errors import UsageError
from kleash.rl.dynamic_beta import BetaRule, DynamicBeta, GapStatistics, dynamic_beta
from kleash.rl.pair_sums import PairLoss
from kleash.rl.preference_losses import dpo
from kleash.tensors import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class BetaDPO:
    """beta: the fixed one, β0. alpha: how much a nat of gap above the usual raises it. momentum: of what is usual.

    keep: share of a step's pairs to train on. floor: beta never falls below it; steps where it would are counted.
    """

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["beta_dpo"] = "beta_dpo"
    beta: float = 0.1
    alpha: float = 0.6
    momentum: float = 0.9
    keep: float = 0.8
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_at_least_zero("loss.alpha", self.alpha)
        check_positive("loss.floor", self.floor)
        if not 0 <= self.momentum < 1:
            raise UsageError(f"loss.momentum = {self.momentum} must be at least 0 and below 1 (0.9 is usual)")
        if not 0 < self.keep <= 1:
            raise UsageError(
                f"loss.keep = {self.keep} is a share of the step's pairs: above 0, at most 1 (all of them)"
            )

    @property
    def label(self) -> str:
        return "reference in the loss; DPO's optimum for a beta that moves with the pairs: none that stays"

    def gap(self, look: Look, mask: Bool[Tensor, "B T"]) -> Float[Tensor, " N"]:
        """What `adapt` reads of each pair: ratio of the chosen − ratio of the rejected, in nats. No gradient is needed.

        Source: Wu et al. 2024 (beta-DPO), arXiv 2407.08639.
        Proved by: tests/algorithms/test_preference_configs.py::test_beta_dpo_adapts
        """
        return text_ratio(look, mask).margin.detach()

    def adapt(self, gap: Float[Tensor, " N"], before: GapStatistics | None, generator: torch.Generator) -> DynamicBeta:
        """This step's beta and the pairs it keeps, from the gaps of all its pairs.

        Source: Wu et al. 2024 (beta-DPO), arXiv 2407.08639.
        Proved by: tests/algorithms/test_preference_configs.py::test_beta_dpo_adapts
        """
        return dynamic_beta(
            gap, BetaRule(self.beta, self.alpha, self.momentum, self.keep, self.floor), before, generator
        )

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """DPO's with the step's beta.

        Source: Wu et al. 2024 (beta-DPO), arXiv 2407.08639.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return dpo(text_ratio(look, mask), beta)
