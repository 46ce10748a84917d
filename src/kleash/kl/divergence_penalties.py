"""Penalties steeper than the KL, for rewards with a heavy tail: χ² and Rényi divergences of each position.

A KL charges a token that the policy has made r times likelier log r: under a reward whose tail falls like a power, any
small KL buys an unbounded score (docs/rewards.md). χ² charges r − 1. Neither adds up over tokens as the KL does: the
sum of D_t is one of divergences of next-token distributions, not the divergence of whole sequences; the label says so.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.ratios import Importance, Ratios, off_policy_label
from kleash.kl.terms import STRICT, KLTerms, charge_of_positions
from kleash.tensors import Look

#: Where D₂ = log(1 + χ²) is above this many nats, χ² goes on as its tangent in D₂, value and slope continuous: its own
#: slope e^D₂ would soon be all that a gradient norm of 1 leaves room for, and past 88 nats no fp32 number. Why 10: the
#: bound of k3, e¹⁰ = 22 026, for the same reason (docs/decisions/k3-bound.md).
CHI2_BOUND = 10.0


def beyond_chi2_bound(look: Look) -> Bool[Tensor, "B T"]:
    """Where χ² is on its linear continuation, to be counted and logged. `look.renyi` is of order 2.

    Source: kleash; the bound and its reason are at CHI2_BOUND.
    Proved by: tests/kl/test_divergence_penalties.py::test_chi2_goes_on_as_its_tangent
    """
    return _divergence(look) > CHI2_BOUND


@dataclass(frozen=True, slots=True)
class Chi2:
    """χ²(π(·|h_t) ‖ ref(·|h_t)) at every position, own token in the loss, later positions in the advantage."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["chi2"] = "chi2"
    importance: Importance = "prefix"

    @property
    def label(self) -> str:
        said = "the expected sum over positions of χ²(policy‖reference): per position, not the χ² of whole sequences"
        return said + off_policy_label(self.importance)

    def measure(self, look: Look) -> Float[Tensor, "B T"]:
        """χ² = Σ π²/ref − 1 of each position (dimensionless), linear in log(1 + χ²) past CHI2_BOUND.

        Source: Huang et al. 2024, arXiv 2407.13399 (χ² in place of the KL); Laidlaw et al. 2024, arXiv 2403.03185.
        Proved by: tests/kl/test_divergence_penalties.py::test_measures_equal_the_written_out_sums
        """
        order_two = _divergence(look)
        near = order_two.clamp_max(CHI2_BOUND)  # counted in chi2_linear_fraction
        return torch.expm1(near) + math.exp(CHI2_BOUND) * (order_two - near)

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Own term ρ_{<t} χ²_t, credit Σ_{n>t} ρ_{<n} χ²_n.

        Source: product rule, as for the KL: Amini et al. 2025, arXiv 2504.10637.
        Proved by: tests/training/test_gradient.py::test_steeper_penalties_have_the_stated_gradient
        """
        return charge_of_positions(self.measure(look), mask, ratios, look.weight)


@dataclass(frozen=True, slots=True)
class Renyi:
    """D_α(π(·|h_t) ‖ ref(·|h_t)) at every position, own token in the loss, later positions in the advantage.

    alpha: the order. Above 1 steeper than the KL, below 1 flatter; the KL itself is `exact`.
    """

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["renyi"] = "renyi"
    alpha: float = 2.0
    importance: Importance = "prefix"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0 and abs(self.alpha - 1) >= 0.01):
            raise UsageError(
                f"kl.penalty.alpha = {self.alpha} must be positive and at least 0.01 from 1: at 1 the Rényi divergence "
                'is the KL, which is penalty = "exact", and closer to it fp32 leaves it no digits'
            )

    @property
    def label(self) -> str:
        return (
            f"the expected sum over positions of the Rényi divergence of order {self.alpha:g}, policy‖reference: per "
            "position, not that of whole sequences" + off_policy_label(self.importance)
        )

    def measure(self, look: Look) -> Float[Tensor, "B T"]:
        """D_α = log(Σ π^α ref^(1−α)) / (α − 1) of each position, nats.

        Source: van Erven & Harremoës 2014, arXiv 1206.2459 eq. 1.
        Proved by: tests/kl/test_divergence_penalties.py::test_measures_equal_the_written_out_sums
        """
        return _divergence(look)

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Own term ρ_{<t} D_t, credit Σ_{n>t} ρ_{<n} D_n. Nats.

        Source: product rule, as for the KL: Amini et al. 2025, arXiv 2504.10637.
        Proved by: tests/training/test_gradient.py::test_steeper_penalties_have_the_stated_gradient
        """
        return charge_of_positions(self.measure(look), mask, ratios, look.weight)


def order_of(penalty: object) -> float | None:
    """The order of the Rényi divergence that a look must measure for a penalty; None for those that need none.

    Source: χ² = exp(D₂) − 1, van Erven & Harremoës 2014, arXiv 1206.2459 eq. 7.
    Proved by: tests/kl/test_divergence_penalties.py::test_measures_equal_the_written_out_sums
    """
    match penalty:
        case Chi2():
            return 2.0
        case Renyi():
            return penalty.alpha
        case _:
            return None


def _divergence(look: Look) -> Float[Tensor, "B T"]:
    assert look.renyi is not None, "a look is told of the penalty's order, and preflight guarantees a reference"
    return look.renyi
