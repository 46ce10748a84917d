"""KTO: texts that are desirable or not, without pairs."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from kleash.algorithms.preference.anchored import log_ratio
from kleash.algorithms.preference.checks import STRICT, check_positive
from kleash.rl.kto import BaselineKind, TextLoss, kto
from kleash.tensors import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class KTO:
    """desirable, undesirable: weights of the two classes; with unequal numbers, times their number about the same.

    baseline: what stands for KL(policy‖reference): "mismatched" (the paper's), "on_policy" (measured on samples),
    "prefixes" (exact, along the step's own texts), "zero". docs/preferences.md says what each is.
    """

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["kto"] = "kto"
    beta: float = 0.1
    desirable: float = 1.0
    undesirable: float = 1.0
    baseline: BaselineKind = "mismatched"

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_positive("loss.desirable", self.desirable)
        check_positive("loss.undesirable", self.undesirable)

    @property
    def label(self) -> str:
        return "reference in the loss; no posterior: up without end where desirable is likelier (weighted), else down"

    def loss(
        self, look: Look, mask: Bool[Tensor, "B T"], desirable: Bool[Tensor, " B"], baseline: float, beta: float
    ) -> TextLoss:
        """λ σ(∓β (ratio − z0)) of each text; z0 = `baseline`, one for the step, in nats per sequence.

        Source: Ethayarajh et al. 2024 (KTO), arXiv 2402.01306 §4.
        Proved by: tests/algorithms/test_preference_configs.py::test_kto_is_its_formula_of_a_look
        """
        ratio = torch.where(mask, log_ratio(look), 0.0).sum(1)
        return kto(ratio, desirable, baseline, beta, (self.desirable, self.undesirable))
