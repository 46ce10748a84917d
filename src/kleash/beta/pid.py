"""PI and PID on log beta: the laws that hold a KL target. PI is kleash's default.

The plant they were made for: at a fixed beta the policy drifts to a KL of about sigma²/(2 beta²), so log KL
falls by 2 for every 1 that log beta rises, whatever the beta. On log beta the loop's gain is the same at beta = 0.001
and at 10, and beta cannot become negative; on beta itself one setting of the gains fits one beta only.
"""

import math
from dataclasses import dataclass
from typing import Literal

from kleash.beta.guard import (
    BETA_MAX,
    BETA_MIN,
    STRICT,
    hold,
    move,
    require_bounds,
    require_finite,
    saturate,
    start,
    steer,
)
from kleash.records import ControllerState, Reading, Target


@dataclass(frozen=True, kw_only=True)
class PI:
    """log beta = integral of ki·e + kp·e, with e = (KL − target)/target clipped to ±error_clip.

    Start tight (beta 0.05) and let it loosen: from a low beta the KL overshoots before the law can answer.

    Source: Stooke et al. 2020, arXiv 2007.03964 (PID Lagrangian), here on log beta.
    Proved by: tests/beta/test_closed_loop.py::test_settles
    """

    kind: Literal["pi"] = "pi"
    kp: float = 1.0
    ki: float = 0.1
    error_clip: float = 0.3
    beta_min: float = BETA_MIN
    beta_max: float = BETA_MAX
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _check(self)

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta of 0 or out of bounds."""
        return start(beta, self.beta_min, self.beta_max)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state. Raises UsageError: no target, or a reading of another kind or unit."""
        return _update(self, 0.0, state, reading, target)


@dataclass(frozen=True, kw_only=True)
class PID:
    """PI plus kd·(e − the last e): brakes while the KL still approaches; passes on the reading's noise kd-fold.

    Source: Stooke et al. 2020, arXiv 2007.03964 (PID Lagrangian), here on log beta.
    Proved by: tests/beta/test_closed_loop.py::test_settles
    """

    kind: Literal["pid"] = "pid"
    kp: float = 1.0
    ki: float = 0.1
    kd: float = 1.0
    error_clip: float = 0.3
    beta_min: float = BETA_MIN
    beta_max: float = BETA_MAX
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _check(self)
        require_finite(self, nonnegative=("kd",))

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta of 0 or out of bounds."""
        return start(beta, self.beta_min, self.beta_max)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state. Raises UsageError: no target, or a reading of another kind or unit."""
        return _update(self, self.kd, state, reading, target)


def _update(
    law: PI | PID, kd: float, state: ControllerState, reading: Reading | None, target: Target | None
) -> ControllerState:
    error, held = steer(reading, target)
    if error is None:
        return hold(state, held)
    error, saturated = saturate(state, error, law.error_clip)
    change = 0.0 if state.previous_error is None else error - state.previous_error
    transient = law.kp * error + kd * change
    integral = math.log(state.beta) - state.transient + law.ki * error
    log_beta = min(integral + transient, math.log(law.beta_max) + 1)  # past the bound all the same; exp may overflow
    # Keeping the whole transient although beta is cut at a bound takes the excess off the integral
    # (back-calculation): the law leaves the bound as soon as the error shrinks, it has no winding to undo.
    memory = {"transient": transient, "previous_error": error, "saturated": saturated}
    return move(state, math.exp(log_beta), law.beta_min, law.beta_max, **memory)


def _check(law: PI | PID) -> None:
    require_finite(law, positive=("ki", "error_clip"), nonnegative=("kp",))
    require_bounds(law.beta_min, law.beta_max)
