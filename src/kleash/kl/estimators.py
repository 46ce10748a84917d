"""Single-sample KL estimators over log_ratio = log π − log π_ref, on tokens drawn from π.

Elementwise, in nats. `ESTIMATORS` is the table of what each one is good for; every entry of it is proved
by enumeration over all sequences of a tabular model with more than one step, value and gradient. Which
estimator may stand where (reward or loss) follows from the `gradient` column.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

#: Below log_ratio = −K3_BOUND (the reference e¹⁰ ≈ 22 026 times likelier than the policy) k3 goes on as its
#: tangent. Why 10: there the slope 1 − e¹⁰ is still a finite fp16 number (the limit is log 65504 = 11.09),
#: so the gradient of a half-precision input is finite at any log_ratio, with a factor 3 to spare; and tokens
#: beyond it are rare, for P_π(log_ratio < −b) ≤ e^−b: at most one in 22 026 of those sampled from π itself.
K3_BOUND = 10.0

#: Below this |log_ratio| k3 is summed as a power series, for exp(−x) − 1 + x cancels to noise of either sign.
_SERIES_RADIUS = 0.1
_SERIES = tuple((-1.0) ** n / math.factorial(n) for n in range(2, 12))

Gradient = Literal["zero", "reverse per prefix", "forward per prefix"]


def _wide(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """float64 stays; everything narrower is computed in fp32."""
    return x if x.dtype == torch.float64 else x.float()


def k1(log_ratio: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Schulman's k1: the log-ratio x itself. Either sign, high variance near the reference, tame far from it.

    Nats, elementwise, fp32 (float64 from float64).

    Estimates: KL(π ‖ π_ref). Unbiased.
    Gradient: as a per-token loss, on-policy: zero in expectation. In the reward (to go): the sequence's
        reverse KL.
    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html
    Proved by: tests/kl/test_estimators.py::test_claims_by_enumeration
    """
    return _wide(log_ratio)


def k2(log_ratio: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Schulman's k2: x²/2. Biased in value, right in gradient.

    Nats, elementwise, fp32 (float64 from float64).

    Estimates: KL(π ‖ π_ref) to second order in x. Biased, ≥ 0.
    Gradient: as a per-token loss, on-policy: Σ_t E_prefix ∇KL(π ‖ π_ref | prefix), the reverse direction with
        prefixes held fixed; what a token owes for later tokens' KL is missing.
    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html ; Liu et al., arXiv 2510.01555 (as a loss).
    Proved by: tests/kl/test_estimators.py::test_claims_by_enumeration
    """
    x = _wide(log_ratio)
    return x.square() / 2


def k3(log_ratio: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Schulman's k3: exp(−x) − 1 + x. Never negative; heavy-tailed once π is narrower than π_ref.

    Nats, elementwise, fp32 (float64 from float64). Where x < −K3_BOUND it continues linearly, value and slope
    continuous, so that it is finite and its gradient live at any log_ratio; it is unbiased only up to that
    bound. Count the tokens beyond it with `beyond_bound`.

    Estimates: KL(π ‖ π_ref). Unbiased, ≥ 0.
    Gradient: as a per-token loss, on-policy: Σ_t E_prefix ∇KL(π_ref ‖ π | prefix): the *forward* direction.
    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html ; DeepSeekMath, arXiv 2402.03300 (GRPO).
    Proved by: tests/kl/test_estimators.py::test_claims_by_enumeration
    """
    x = _wide(log_ratio)
    small, beyond = x.abs() < _SERIES_RADIUS, beyond_bound(x)
    # Each branch sees only its own x: an overflow in a branch not taken would put NaN into the gradient.
    series_x, plain_x = torch.where(small, x, 0.0), torch.where(small | beyond, 0.0, x)
    plain = torch.expm1(-plain_x) + plain_x
    tangent = (math.expm1(K3_BOUND) - K3_BOUND) + math.expm1(K3_BOUND) * (-K3_BOUND - x)
    return torch.where(small, _series(series_x), torch.where(beyond, tangent, plain))


def beyond_bound(log_ratio: Float[Tensor, "*s"]) -> Bool[Tensor, "*s"]:
    """Where k3 is on its linear continuation (log_ratio < −K3_BOUND), to be counted and logged.

    Source: kleash; the bound and its reason are at K3_BOUND.
    Proved by: tests/kl/test_estimators.py::test_k3_continues_with_value_and_slope
    """
    return log_ratio < -K3_BOUND


def _series(x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
    """Σ_{n=2}^{11} (−x)ⁿ/n! by Horner: exact to float64 rounding for |x| < 0.1, and never negative."""
    total = torch.zeros_like(x)
    for coefficient in reversed(_SERIES):
        total = total * x + coefficient
    return x.square() * total


@dataclass(frozen=True, slots=True)
class EstimatorInfo:
    """An estimator and its three claims about KL(π ‖ π_ref), for tokens drawn from π.

    `gradient` is what its expected gradient is when it stands as a per-token loss: of the KL at each position
    with prefixes held fixed ("per prefix"), in the named direction, or zero.
    """

    fn: Callable[[Tensor], Tensor]
    unbiased: bool
    nonnegative: bool
    gradient: Gradient


ESTIMATORS: dict[str, EstimatorInfo] = {
    "k1": EstimatorInfo(k1, unbiased=True, nonnegative=False, gradient="zero"),
    "k2": EstimatorInfo(k2, unbiased=False, nonnegative=True, gradient="reverse per prefix"),
    "k3": EstimatorInfo(k3, unbiased=True, nonnegative=True, gradient="forward per prefix"),
}
