"""From per-token KL values to a `Reading`: the number, its error, its tail and why not to trust it."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.errors import RunError
from kleash.masked import clustered_ratio, require_bool
from kleash.records import Estimator, KLKind, Reading, Unit

#: A KL is never negative. Its estimate may be, by noise: down to this many standard errors it is believed …
NOISE_ERRORS = 3.0
#: … and down to this many nats per token, the rounding of fp32 log-probs, which no standard error shows.
ROUNDING = 1e-5


def measure(
    kl: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    group: Int[Tensor, " B"],
    *,
    kind: KLKind,
    estimator: Estimator,
    unit: Unit,
    invalid: str | None = None,
) -> Reading:
    """The mean KL over counted tokens or over sequences, as a reading. Nothing here is differentiable.

    Args:
        kl: per-token values in nats: exact KL_t, or an estimator of the log-ratio. Anything under the mask.
        mask: True where a token counts. A row without a counted token is no sequence and is left out.
        group: which prompt each row belongs to; the standard error is clustered by it.
        kind: what is compared with what.
        estimator: how `kl` was computed.
        unit: "nats/token" is Σ kl / Σ tokens, with quantiles of the tokens' values; "nats/sequence" is the
            mean of the rows' sums, with quantiles of those sums.
        invalid: a reason already known not to trust this reading (sampler differs from the scored policy, …).

    A quantile is the smallest observed value that at least that share does not exceed. A value that is not
    finite, or is negative beyond noise, is kept as measured and named in `invalid`.

    Raises:
        RunError: no token counts.
        UsageError: the mask is not bool.

    Source: Liang & Zeger 1986 (cluster-robust variance).
    Proved by: tests/kl/test_measure.py::test_equals_slow_loop
    """
    require_bool(mask)
    rows = mask.any(1)
    if not bool(rows.any()):
        raise RunError(f"{kind} cannot be measured: no token counts (the mask is False everywhere)")
    kl, mask, group = kl.detach()[rows].cpu().double(), mask[rows].cpu(), group[rows].cpu()
    sums, tokens = torch.where(mask, kl, 0.0).sum(1), mask.sum(1).double()
    per_token = unit == "nats/token"
    value, error = clustered_ratio(sums, tokens if per_token else torch.ones_like(sums), group)
    if error is not None and not math.isfinite(error):
        error = None
    counted = kl[mask]
    q95, q99, largest = _tail(counted if per_token else sums)
    rounding = ROUNDING * (1.0 if per_token else float(tokens.mean()))
    reasons = [invalid, _not_finite(counted), _negative(value, error, estimator, rounding)]
    return Reading(
        kind=kind,
        value=value,
        unit=unit,
        estimator=estimator,
        n_prompts=int(group.unique().numel()),
        n_sequences=len(group),
        n_tokens=counted.numel(),
        standard_error=error,
        q95=q95,
        q99=q99,
        max=largest,
        invalid="; ".join(reason for reason in reasons if reason) or None,
    )


def _tail(values: Float[Tensor, " n"]) -> tuple[float | None, float | None, float | None]:
    """The 95 % and 99 % quantiles (order statistics) and the largest; None if there are NaNs."""
    if bool(values.isnan().any()):
        return None, None, None
    ordered, n = values.sort().values, values.numel()
    # In integers: 0.95 · 20 is 19.000000000000004 in floating point on some roads to it.
    return float(ordered[-(-95 * n // 100) - 1]), float(ordered[-(-99 * n // 100) - 1]), float(ordered[-1])


def _not_finite(counted: Float[Tensor, " n"]) -> str | None:
    bad = int((~counted.isfinite()).sum())
    return f"{bad} of {counted.numel()} counted KL values are not finite" if bad else None


def _negative(value: float, error: float | None, estimator: Estimator, rounding: float) -> str | None:
    """Why a negative value cannot be a KL. Only k1 is negative by chance; the others only by rounding."""
    noise = NOISE_ERRORS * (error or 0.0) if estimator == "k1" else 0.0
    if not value < -max(noise, rounding):
        return None
    if estimator == "k1" and error is None:
        return f"the estimate is negative ({value:.4g} nats) and one prompt cannot tell whether by noise"
    return f"the estimate is negative beyond noise ({value:.4g} nats): it is no KL of what drew these tokens"
