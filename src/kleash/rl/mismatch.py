"""Samples of another distribution than the policy says: an engine's arithmetic, or weights of some steps ago.

    w = π_old / μ      π_old: the policy before the step's updates, by the trainer; μ: what the sampler recorded

`w` multiplies the reward's credit, beside PPO's own ratio π/π_old, and is a constant of the step. The KL's charges do
not take it: their ratios (`kleash.kl.ratios`) run from μ itself, so the leash is neither cut nor masked.

TIS: "Your efficient RL framework secretly brings you off-policy RL training", Yao et al. 2025.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.errors import UsageError


class Weights(NamedTuple):
    """value: w of each token, detached. bounded: where it was truncated or masked; False where the mask is."""

    value: Float[Tensor, "B T"]
    bounded: Bool[Tensor, "B T"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """How the reward's credit is corrected for a sampler that is not the policy.

    kind: "truncated": weights above `cap` are `cap`. "masked": those outside [floor, cap] are 0, the rest as they are.
    level: "sequence": the ratio of the whole sequence, at all its tokens. "token": each token's own.
    floor: of "masked" alone; left out, 1/cap.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["truncated", "masked"] = "truncated"
    level: Literal["token", "sequence"] = "sequence"
    cap: float = 2.0
    floor: float | None = None

    def __post_init__(self) -> None:
        if not self.cap >= 1:
            raise UsageError(
                f"train.mismatch.cap = {self.cap} must be at least 1, the ratio of a sampler that is the policy"
            )
        if self.floor is None:
            return
        if self.kind == "truncated":
            raise UsageError(
                f'train.mismatch.floor = {self.floor} would not be used: "truncated" bounds weights above alone; leave '
                'it out, or use kind = "masked"'
            )
        if not 0 <= self.floor <= 1:
            raise UsageError(f"train.mismatch.floor = {self.floor} must lie between 0 (none) and 1")

    @property
    def label(self) -> str:
        """What the expected gradient of the reward's credit is, in words."""
        exact = self.level == "sequence"
        what = "the policy's own, exactly, where no ratio is bounded" if exact else "at the sampler's states, biased"
        low = 1 / self.cap if self.floor is None else self.floor
        bound = f"at most {self.cap:g}" if self.kind == "truncated" else f"0 outside [{low:g}, {self.cap:g}]"
        return f"reward's credit times policy/sampler of the {self.level}, {bound}: {what}"

    def weights(self, old: Float[Tensor, "B T"], sampler: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Weights:
        """w of each token, bounded, from log-probs in nats. Tokens outside the mask count as ratio 1.

        Source: Yao et al. 2025 (TIS: truncated, by tokens); Ling team 2025 (IcePop: masked), arXiv 2510.18855.
        Proved by: tests/training/test_mismatch.py::test_uncapped_sequence_weights_are_exact
        """
        log = torch.where(mask, old - sampler, 0.0).detach()
        if self.level == "sequence":
            log = log.sum(1, keepdim=True).expand(mask.shape)
        ratio = log.exp()
        beyond = log > math.log(self.cap)
        if self.kind == "truncated":
            return Weights(torch.where(beyond, self.cap, ratio), beyond & mask)
        beyond = beyond | (ratio < (1 / self.cap if self.floor is None else self.floor))
        return Weights(torch.where(beyond, 0.0, ratio), beyond & mask)
