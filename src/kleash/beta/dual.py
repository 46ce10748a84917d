"""Dual ascent: beta *is* the Lagrange multiplier of the constraint KL ≤ target."""

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
from kleash.errors import UsageError
from kleash.records import ControllerState, Reading, Target


@dataclass(frozen=True, kw_only=True)
class Dual:
    """log beta ← log beta + rate·e, with e = (KL − target)/target clipped to ±error_clip.

    Maximising E[reward] subject to KL(policy‖reference) ≤ target has the Lagrangian
    E[reward] − beta·(KL − target), which is what training at this beta maximises. Its derivative by beta is
    target − KL, so the multiplier climbs along KL − target; in log space it stays positive. A constraint that
    does not bind lets it fall to beta_min.

    The clip is wide: it stops one wild reading, not the law.

    Source: Moskovitz et al. 2023, arXiv 2310.04373 (multipliers of reward constraints), here in log space.
    Proved by: tests/beta/test_dual.py::test_multiplier_of_a_solved_problem
    """

    kind: Literal["dual"] = "dual"
    rate: float = 0.02
    error_clip: float = 5.0
    beta_min: float = BETA_MIN
    beta_max: float = BETA_MAX
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        require_finite(self, positive=("rate", "error_clip"))
        require_bounds(self.beta_min, self.beta_max)
        if self.rate * self.error_clip > 1:
            raise UsageError(
                f"rate·error_clip = {self.rate * self.error_clip:g} would change beta more than e-fold "
                "on one reading; keep it at 1 or below"
            )

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta of 0 or out of bounds."""
        return start(beta, self.beta_min, self.beta_max)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state. Raises UsageError: no target, or a reading of another kind or unit."""
        error, held = steer(reading, target)
        if error is None:
            return hold(state, held)
        error, saturated = saturate(state, error, self.error_clip)
        beta = state.beta * math.exp(self.rate * error)
        return move(state, beta, self.beta_min, self.beta_max, saturated=saturated)
