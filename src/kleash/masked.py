"""Statistics over a bool mask (True = counts). A non-bool mask is an error: polarity flips are silent."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.errors import UsageError


def require_bool(mask: Tensor) -> None:
    """Refuse a mask that is not bool.

    Raises:
        UsageError: naming its dtype.
    """
    if mask.dtype != torch.bool:
        raise UsageError(f"the mask is {mask.dtype}; it must be bool, True where a token counts")


def masked_sum(x: Float[Tensor, "*s"], mask: Bool[Tensor, "*s"]) -> Float[Tensor, ""]:
    """Σ x over True; values under False (even NaN) change neither the sum nor its gradient."""
    require_bool(mask)
    return torch.where(mask, x, 0.0).sum()


def masked_mean(x: Float[Tensor, "*s"], mask: Bool[Tensor, "*s"]) -> Float[Tensor, ""]:
    """Mean of x over True; NaN if nothing counts."""
    return masked_sum(x, mask) / mask.sum()


class Whitened(NamedTuple):
    """value: mean 0 and standard deviation 1 over True, 0 elsewhere. scale: what x was multiplied by."""

    value: Tensor
    scale: float


def whiten(x: Float[Tensor, "*s"], mask: Bool[Tensor, "*s"]) -> Whitened:
    """(x − mean) / std over True, the population's std. The mean is *removed*: there is no flag to keep it.

    Without spread the value is 0 and the scale 1.

    Source: lm-human-preferences, lm_human_preferences/utils/core.py whiten, with shift_mean=True.
    Proved by: tests/test_masked.py::test_whiten_equals_numpy
    """
    require_bool(mask)
    centred = torch.where(mask, x - masked_mean(x, mask), 0.0) if mask.any() else torch.zeros_like(x)
    std = float((centred.square().sum() / mask.sum().clamp(min=1)).sqrt())
    scale = 1 / std if std > 0 else 1.0
    return Whitened(centred * scale, scale)


def clustered_ratio(
    numerator: Float[Tensor, " B"], denominator: Float[Tensor, " B"], cluster: Int[Tensor, " B"]
) -> tuple[float, float | None]:
    """Σ numerator / Σ denominator and its cluster-robust (CR1, linearised) standard error.

    With denominator = 1 this is a mean with its clustered standard error; with token counts it is a per-token
    mean. The error is None with fewer than two clusters: it is then not measurable.

    Source: Liang & Zeger 1986 (cluster-robust variance); Cochran 1977 §6.4 (variance of a ratio).
    Proved by: tests/test_masked.py::test_clustered_error_equals_slow_loop
    """
    # On the CPU: float64 does not exist on every accelerator, and B numbers are few.
    numerator, denominator = (x.detach().to("cpu", torch.float64) for x in (numerator, denominator))
    total = denominator.sum()
    value = numerator.sum() / total
    _, index = torch.unique(cluster.cpu(), return_inverse=True)
    n_clusters = int(index.max()) + 1
    if n_clusters < 2:
        return float(value), None
    residual = torch.zeros(n_clusters, dtype=torch.float64)
    residual.index_add_(0, index, numerator - value * denominator)
    variance = n_clusters / (n_clusters - 1) * residual.square().sum() / total.square()
    return float(value), math.sqrt(float(variance))
