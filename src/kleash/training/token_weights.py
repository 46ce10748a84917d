"""[kl] weights: how much of each class's KL is charged; and each class's share of the KL that is measured."""

import math
import re
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.errors import UsageError
from kleash.models.token_classes import CLASSES
from kleash.training.section import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassWeights:
    """What the KL at a sampled token of each class is multiplied by in the penalty. What is measured stays as it is."""

    __pydantic_config__ = STRICT

    eos: float = 1.0
    format: float = 1.0
    content: float = 1.0

    def __post_init__(self) -> None:
        given = (self.eos, self.format, self.content)
        if not all(math.isfinite(w) and w >= 0 for w in given) or not any(given):
            raise UsageError(
                f"kl.weights {{ eos = {self.eos}, format = {self.format}, content = {self.content} }} must be at least "
                "0, and not all 0: a negative one would reward leaving the reference"
            )

    def table(self, classes: Int[Tensor, " V"]) -> Float[Tensor, " V"]:
        """The weight of each token id."""
        return torch.tensor([getattr(self, name) for name in CLASSES], device=classes.device)[classes]


def check_pattern(pattern: str) -> None:
    """Raises UsageError for one that is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"kl.format = {pattern!r} is not a regular expression: {error}") from None


def by_class(
    kl: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], classes: Int[Tensor, "B T"]
) -> tuple[dict[str, float], dict[str, float]]:
    """KL in nats per token of each class that was sampled, and each one's share of the whole (empty where that is 0).

    The KL of a position goes to the class of the token that was sampled there.
    """
    sums, counts = {}, {}
    for number, name in enumerate(CLASSES):
        inside = mask & (classes == number)
        counts[name] = int(inside.sum())
        sums[name] = float(torch.where(inside, kl.double(), 0.0).sum())
    total = sum(sums.values())
    there = [name for name in CLASSES if counts[name]]
    shares = {name: sums[name] / total for name in there} if total > 0 else {}
    return {name: sums[name] / counts[name] for name in there}, shares
