"""DPO on labels of which a share is wrong: held to be (cDPO), or known to be (robust DPO)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Bool
from torch import Tensor

from kleash.algorithms.preference.anchored import text_ratio
from kleash.algorithms.preference.checks import STRICT, check_flip, check_positive
from kleash.rl.pair_sums import PairLoss
from kleash.rl.preference_losses import conservative_dpo, robust_dpo
from kleash.tensors import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class CDPO:
    """flip: how often a label is held to be wrong. Certain labels then have a finite margin; it does not undo noise."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["cdpo"] = "cdpo"
    beta: float = 0.1
    flip: float = 0.1

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_flip(self.flip)

    @property
    def label(self) -> str:
        return "reference in the loss; DPO's optimum for labels of which a share `flip` more is turned round"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−(1 − flip) log σ(Δ) − flip log σ(−Δ).

        Source: Mitchell 2023 (cDPO), https://ericmitchell.ai/cdpo.pdf
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return conservative_dpo(text_ratio(look, mask), beta, self.flip)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustDPO:
    """flip: the share of labels that were turned round at random. Its loss is unbounded below on any finite set."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["robust_dpo"] = "robust_dpo"
    beta: float = 0.1
    flip: float = 0.1

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_flip(self.flip)

    @property
    def label(self) -> str:
        return "reference in the loss; DPO's optimum for the true labels, if a share `flip` was turned round at random"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """[−(1 − flip) log σ(Δ) + flip log σ(−Δ)] / (1 − 2 flip).

        Source: Chowdhury et al. 2024 (rDPO), arXiv 2403.00409.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return robust_dpo(text_ratio(look, mask), beta, self.flip)
