"""Losses on preferences, a dataclass each. Adding one is one class and one line here.

A loss is asked with what one forward pass saw of N pairs (2N rows: preferred, other, preferred, …) and answers for each
pair; the caller averages over the pairs of the step, so that microbatches add up.
"""

from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Bool
from torch import Tensor

from kleash.algorithms.preference.anchored import DPO
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


LOSSES: dict[str, type] = {
    "dpo": DPO,
}

__all__ = ["DPO", "LOSSES", "PairLoss", "PreferenceLoss", "Sides"]
