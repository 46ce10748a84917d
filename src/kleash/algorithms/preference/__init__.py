"""Losses on preferences, a dataclass each. Adding one is one class and one line here.

A loss is asked with what one forward pass saw of N pairs (2N rows: preferred, other, preferred, …), or of single texts,
and answers for each; the caller averages over those of the step, so that microbatches add up.
"""

from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.algorithms.preference.anchored import DPO, EXO, FDPO, IPO, LDDPO, Hinge
from kleash.algorithms.preference.dynamic import BetaDPO
from kleash.algorithms.preference.kto import KTO
from kleash.algorithms.preference.noisy import CDPO, RobustDPO
from kleash.algorithms.preference.reference_free import CPO, ORPO, SimPO
from kleash.rl.dynamic_beta import DynamicBeta, GapStatistics
from kleash.rl.kto import BaselineKind, TextLoss
from kleash.rl.pair_sums import PairLoss, Sides
from kleash.tensors import Look


@runtime_checkable
class PreferenceLoss(Protocol):
    """A frozen dataclass, which is its config, with a loss of pairs."""

    #: Whether the reference is in the loss. Without it beta is a scale and no price of KL: no KL target can be held.
    needs_reference: ClassVar[bool]

    @property
    def kind(self) -> str: ...
    @property
    def beta(self) -> float: ...
    @property
    def label(self) -> str:
        """What the optimum is and whether the reference is in it, in words."""
        ...

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """Per pair, live. `beta` is the field's value, or what a controller made of it."""
        ...


@runtime_checkable
class AdaptsToPairs(Protocol):
    """A loss whose beta follows the pairs of each step: it sees all of them once, without gradients, before its loss.

    Pairs that are not kept are left out of the step.
    """

    def gap(self, look: Look, mask: Bool[Tensor, "B T"]) -> Float[Tensor, " N"]: ...
    def adapt(
        self, gap: Float[Tensor, " N"], before: GapStatistics | None, generator: torch.Generator
    ) -> DynamicBeta: ...


@runtime_checkable
class TextsLoss(Protocol):
    """A loss of single texts with a label each, and a baseline that is one for the step."""

    needs_reference: ClassVar[bool]

    @property
    def kind(self) -> str: ...
    @property
    def beta(self) -> float: ...
    @property
    def label(self) -> str: ...
    @property
    def baseline(self) -> BaselineKind:
        """What the step's baseline is to be made of."""
        ...

    def loss(
        self, look: Look, mask: Bool[Tensor, "B T"], desirable: Bool[Tensor, " B"], baseline: float, beta: float
    ) -> TextLoss: ...


#: Losses of pairs.
LOSSES: dict[str, type] = {
    "dpo": DPO,
    "cdpo": CDPO,
    "robust_dpo": RobustDPO,
    "ipo": IPO,
    "hinge": Hinge,
    "exo": EXO,
    "f_dpo": FDPO,
    "ld_dpo": LDDPO,
    "beta_dpo": BetaDPO,
    "orpo": ORPO,
    "simpo": SimPO,
    "cpo": CPO,
}

#: Losses of single texts.
TEXT_LOSSES: dict[str, type] = {"kto": KTO}

__all__ = [
    "CDPO",
    "CPO",
    "DPO",
    "EXO",
    "FDPO",
    "IPO",
    "KTO",
    "LDDPO",
    "LOSSES",
    "ORPO",
    "TEXT_LOSSES",
    "AdaptsToPairs",
    "BaselineKind",
    "BetaDPO",
    "DynamicBeta",
    "GapStatistics",
    "Hinge",
    "PairLoss",
    "PreferenceLoss",
    "RobustDPO",
    "Sides",
    "SimPO",
    "TextLoss",
    "TextsLoss",
]
