"""What a penalty is made of: its two terms, and how a charge per position becomes them."""

from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.kl.ratios import Importance, Ratios
from kleash.tensors import Look

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


class KLTerms(NamedTuple):
    """own: live, times beta in the loss. to_go: detached, times beta out of the advantage. None: absent."""

    own: Float[Tensor, "B T"] | None
    to_go: Float[Tensor, "B T"] | None


@runtime_checkable
class Penalty(Protocol):
    """A frozen dataclass that turns a look at the tokens into its two KL terms."""

    needs_reference: ClassVar[bool]

    @property
    def label(self) -> str:
        """What the expected gradient of this choice is, in words."""
        ...

    @property
    def importance(self) -> Importance | None:
        """The form of the ratios on its charges; None: it takes no product of them, so there is none to truncate."""
        ...

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms: ...


def kl_to_come(per_token: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """F_t = Σ_{n>t} x_n in nats, detached.

    Source: product rule of ∇KL, Amini et al. 2025, arXiv 2504.10637.
    Proved by: tests/kl/test_penalties.py::test_kl_to_come_equals_slow_loop
    """
    x = torch.where(mask, per_token.detach(), 0.0)
    return x.flip(1).cumsum(1).flip(1) - x


def charge_of_positions(
    value: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    ratios: Ratios,
    weight: Float[Tensor, "B T"] | None = None,
) -> KLTerms:
    """The terms whose gradient is ∇E_π[Σ_t D_t], D_t a live function of the prefix and of π at it.

    Own term ρ_{<t} D_t, credit Σ_{n>t} ρ_{<n} D_n, by the product rule: ∇E[D_n] = E[∇D_n + D_n Σ_{t<n} ∇ℓ_t].
    With weights w_t of the sampled tokens it is ∇E_π[Σ_t w_t D_t]. w_t depends on token t itself, so that token has
    credit to take for it, and the ratio through t: own term ρ_{1:t} w_t D_t, credit Σ_{n≥t} ρ_{1:n} w_n D_n.
    So with prefix ratios; the other forms are in `kleash.kl.ratios`.

    Source: Amini et al. 2025, arXiv 2504.10637 (for the KL).
    Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
    """
    if weight is not None:
        charge = ratios.through * weight * value
        come = torch.where(mask, charge.detach(), 0.0) + kl_to_come(charge, mask)
        return KLTerms(own=ratios.score * charge, to_go=ratios.score * come)
    own = ratios.before * value
    return KLTerms(own=own, to_go=ratios.score * kl_to_come(own, mask))
