"""What every law of beta asks first: may this reading steer, how far off is it, where are the bounds."""

import math
from dataclasses import replace
from typing import Any

from kleash.errors import UsageError
from kleash.records import ControllerState, Reading, Target

#: How pydantic validates a law that comes from a config: an unknown key, nan or inf is an error.
STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}

#: For rewards of order 1, a nat costs 1e-4 of reward at the lower bound: no leash. At the upper one the optimum
#: ref·exp(reward/beta) is the reference to within measurement. Each decade between a bound and the working
#: point costs PI 23 steps at full error (ln 10 / ki): wider bounds would only make the way back longer.
BETA_MIN = 1e-4
BETA_MAX = 100.0

#: Standard errors below zero from which a negative reading can no longer be noise around a KL of zero.
NOISE = 2.0


def require_finite(law: object, *, positive: tuple[str, ...] = (), nonnegative: tuple[str, ...] = ()) -> None:
    """Checks fields of a law by name.

    Source: a gain or bound that is not a finite number has no meaning.
    Proved by: tests/beta/test_guard.py::test_a_law_refuses_senseless_settings

    Raises:
        UsageError: a field is not finite, or not above zero (`nonnegative`: below zero).
    """
    for name in positive + nonnegative:
        value = getattr(law, name)
        good = math.isfinite(value) and (value > 0 if name in positive else value >= 0)
        if not good:
            wanted = "positive" if name in positive else "at least 0"
            raise UsageError(f"{type(law).__name__}.{name} must be finite and {wanted}, not {value}")


def require_bounds(beta_min: float, beta_max: float) -> None:
    """Raises UsageError unless 0 < beta_min < beta_max < inf.

    Source: log beta must exist at both bounds.
    Proved by: tests/beta/test_guard.py::test_a_law_refuses_senseless_settings
    """
    if not (0 < beta_min < beta_max < math.inf):
        raise UsageError(
            f"beta_min = {beta_min} and beta_max = {beta_max} do not bound beta; "
            "they must be finite with 0 < beta_min < beta_max"
        )


def start(beta: float, beta_min: float, beta_max: float) -> ControllerState:
    """The first state of a law that multiplies beta.

    Source: 0 times any factor is 0.
    Proved by: tests/beta/test_guard.py::test_a_multiplying_law_refuses_beta_zero

    Raises:
        UsageError: beta is 0 (multiplying can never leave it) or outside the bounds.
    """
    if beta == 0:
        raise UsageError(
            "beta = 0 cannot be raised by a controller that multiplies beta; start from a small positive beta "
            'such as 0.05, or write controller = "constant" to train without a leash'
        )
    if not (beta_min <= beta <= beta_max):
        raise UsageError(
            f"the first beta, {beta}, is outside the controller's bounds; choose one from {beta_min:g} to "
            f"{beta_max:g}, or move beta_min or beta_max"
        )
    return ControllerState(beta=beta)


def steer(reading: Reading | None, target: Target | None) -> tuple[float | None, str | None]:
    """The relative error (KL − target)/target, or the reason to hold beta.

    Every negative reading holds: a KL is not negative, so whatever the cause (noise of k1, sampler mismatch), it
    is no evidence that the leash may be loosened.

    Source: Ziegler et al. 2019, arXiv 1909.08593, §2.2 (the error).
    Proved by: tests/beta/test_guard.py::test_a_negative_kl_never_lowers_beta

    Returns:
        (error, None) or (None, reason).

    Raises:
        UsageError: no target; a reading that is not kl_ref; a reading in another unit than the target's.
    """
    if target is None:
        raise UsageError(
            'this controller holds a KL target and has none; give one, such as "4 nats/sequence", '
            'or write controller = "constant"'
        )
    if reading is None:
        return None, "not measured"
    if reading.kind != "kl_ref":
        raise UsageError(f"the leash is steered by kl_ref (policy‖reference); this reading is {reading.kind}")
    if reading.unit != target.unit:
        raise UsageError(
            f"the reading is in {reading.unit} and the target in {target.unit}; give the target in the reading's unit"
        )
    reason = hold_reason(reading)
    if reason is not None:
        return None, reason
    return (reading.value - target.value) / target.value, None


def hold_reason(reading: Reading) -> str | None:
    """Why this reading must not steer, or None if it may.

    Source: KL ≥ 0 (Gibbs' inequality).
    Proved by: tests/beta/test_guard.py::test_a_hold_says_why
    """
    if reading.invalid is not None:
        return f"invalid: {reading.invalid}"
    if not math.isfinite(reading.value):
        return f"not finite: {reading.value}"
    if reading.value >= 0:
        return None
    if reading.standard_error is None:
        return f"negative, noise unknown: {reading.value:.3g}"
    side = "beyond" if reading.value < -NOISE * reading.standard_error else "within"
    return f"negative {side} noise: {reading.value:.3g} ± {reading.standard_error:.2g}"


def saturate(state: ControllerState, error: float, limit: float) -> tuple[float, int]:
    """The error brought to within ±limit, and the state's count of errors that were outside.

    Source: Ziegler et al. 2019, arXiv 1909.08593, §2.2 (there ±0.2).
    Proved by: tests/beta/test_guard.py::test_both_limits_are_counted
    """
    limited = max(-limit, min(limit, error))
    return limited, state.saturated + (limited != error)


def hold(state: ControllerState, reason: str | None) -> ControllerState:
    """The next state with beta unmoved.

    Source: a reading that is no KL says nothing about beta.
    Proved by: tests/beta/test_guard.py::test_a_hold_says_why
    """
    return replace(state, step=state.step + 1, held=reason)


def move(state: ControllerState, beta: float, beta_min: float, beta_max: float, **memory: Any) -> ControllerState:
    """The next state with this beta, brought to within the bounds and counted if it was outside.

    `memory`: the other fields of the state that the law updates.

    Source: bounds of beta, docs/beta.md.
    Proved by: tests/beta/test_guard.py::test_both_limits_are_counted
    """
    bounded = min(max(beta, beta_min), beta_max)
    clipped = state.clipped + (bounded != beta)
    return replace(state, beta=bounded, step=state.step + 1, clipped=clipped, held=None, **memory)
