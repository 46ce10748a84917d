"""Divergences between two distributions over the vocabulary, from their log-probs. In nats, over the last axis.

p is the policy and q the reference: both are normalised log-probs [..., V], in which −inf is a probability of zero.
Every sum runs over outcomes that at least one side can produce, so that no −inf turns into a NaN, in the value or in
the gradient; a divergence that is truly infinite is inf. Computed in fp32 (float64 from float64).
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.errors import UsageError


def reverse(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """KL(p ‖ q) = Σ p (log p − log q): what the leash charges. inf where p can and q cannot.

    Source: Kullback & Leibler 1951, On Information and Sufficiency.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    p, q = _wide(p), _wide(q)
    return _kl(p, q)


def forward(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """KL(q ‖ p) = Σ q (log q − log p): the other direction. inf where q can and p cannot.

    Source: Kullback & Leibler 1951, On Information and Sufficiency.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    return reverse(q, p)


def jeffreys(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """KL(p ‖ q) + KL(q ‖ p): the sum, not the half-sum.

    Source: Jeffreys 1946, An invariant form for the prior probability in estimation problems.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    return reverse(p, q) + reverse(q, p)


def jensen_shannon(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q)/2: symmetric, never above log 2.

    Source: Lin 1991, Divergence measures based on the Shannon entropy.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    p, q = _wide(p), _wide(q)
    neither = _zero(p) & _zero(q)
    # logaddexp(−inf, −inf) is −inf with a NaN gradient; such an outcome is in neither sum.
    m = torch.logaddexp(p.masked_fill(neither, 0.0), q.masked_fill(neither, 0.0)) - math.log(2.0)
    return (_kl(p, m) + _kl(q, m)) / 2


def total_variation(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """½ Σ |p − q|, from 0 to 1 (a probability, not nats): the most any event's probability differs.

    Source: Levin, Peres & Wilmer, Markov Chains and Mixing Times, prop. 4.2.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    return (_wide(p).exp() - _wide(q).exp()).abs().sum(-1) / 2


def chi_squared(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """χ²(p ‖ q) = Σ (p − q)²/q (dimensionless): the variance of p/q under q. inf where p can and q cannot.

    Source: Laidlaw et al. 2024, arXiv 2403.03185 (as a bound on reward hacking).
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    p, q = _wide(p), _wide(q)
    neither = _zero(p) & _zero(q)
    p, q = p.masked_fill(neither, 0.0), q.masked_fill(neither, 0.0)
    # (p/√q − √q)²: no cancellation near p = q, no overflow before the term itself overflows.
    return ((p - q / 2).exp() - (q / 2).exp()).square().sum(-1)


def renyi(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"], alpha: float) -> Float[Tensor, "*s"]:
    """D_α(p ‖ q) = log(Σ p^α q^(1−α)) / (α − 1), non-decreasing in α; KL(p ‖ q) at α = 1.

    Within about 1e-3 of α = 1 fp32 log-probs leave few digits: use float64 or α = 1 itself there.

    Raises:
        UsageError: α is not a positive finite number.

    Source: Rényi 1961; van Erven & Harremoës 2014, arXiv 1206.2459.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise UsageError(f"the Rényi divergence needs a positive finite alpha, not {alpha}")
    return reverse(p, q) if alpha == 1 else _log_power_sum(p, q, alpha) / (alpha - 1)


def alpha_divergence(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"], alpha: float) -> Float[Tensor, "*s"]:
    """(Σ p^α q^(1−α) − 1) / (α (α − 1)): KL(p ‖ q) at α = 1, KL(q ‖ p) at 0, ½ χ²(p ‖ q) at 2.

    Raises:
        UsageError: α is not finite.

    Source: Cressie & Read 1984 (λ = α − 1); Amari 2009, α-divergence is unique.
    Proved by: tests/kl/test_divergences.py::test_equals_mpmath
    """
    if not math.isfinite(alpha):
        raise UsageError(f"the alpha-divergence needs a finite alpha, not {alpha}")
    if alpha in (0.0, 1.0):
        return reverse(p, q) if alpha == 1 else reverse(q, p)
    return torch.expm1(_log_power_sum(p, q, alpha)) / (alpha * (alpha - 1))


def _wide(x: Float[Tensor, "*s V"]) -> Float[Tensor, "*s V"]:
    return x if x.dtype == torch.float64 else x.float()


def _zero(log_p: Float[Tensor, "*s V"]) -> Bool[Tensor, "*s V"]:
    """Where the probability is zero."""
    return log_p == -math.inf


def _kl(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"]) -> Float[Tensor, "*s"]:
    """Σ p (log p − log q) over the outcomes that p can produce; 0 · log 0 is 0, and so is its gradient."""
    never = _zero(p)
    p, q = p.masked_fill(never, 0.0), q.masked_fill(never, 0.0)
    return (p.exp() * (p - q)).masked_fill(never, 0.0).sum(-1)


def _log_power_sum(p: Float[Tensor, "*s V"], q: Float[Tensor, "*s V"], alpha: float) -> Float[Tensor, "*s"]:
    """log Σ p^α q^(1−α) over the outcomes that at least one side can produce."""
    p, q = _wide(p), _wide(q)
    neither = _zero(p) & _zero(q)
    p, q = p.masked_fill(neither, 0.0), q.masked_fill(neither, 0.0)
    return (alpha * p + (1 - alpha) * q).masked_fill(neither, -math.inf).logsumexp(-1)
