"""beta by the clock: constant, or from the first beta to `end` along a line or a half cosine. No reading is used."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from kleash.beta.guard import STRICT, require_finite
from kleash.errors import UsageError
from kleash.records import ControllerState, Reading, Target


@dataclass(frozen=True, kw_only=True)
class Constant:
    """beta stays what it was at the start, 0 included.

    Source: Ouyang et al. 2022, arXiv 2203.02155 (fixed KL coefficient).
    Proved by: tests/beta/test_schedules.py::test_constant_never_moves
    """

    kind: Literal["constant"] = "constant"
    __pydantic_config__ = STRICT

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta that is negative or not finite."""
        return _start(beta)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state; reading and target play no part."""
        return replace(state, step=state.step + 1)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """beta_t = beta_0 + (end − beta_0)·t/steps, then `end`.

    Source: linear interpolation.
    Proved by: tests/beta/test_schedules.py::test_schedules_follow_their_closed_form
    """

    kind: Literal["linear"] = "linear"
    end: float
    steps: int
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _check(self)

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta that is negative or not finite."""
        return _start(beta)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state; reading and target play no part."""
        return _advance(state, self.end, self._remaining(state.step), self._remaining(state.step + 1))

    def _remaining(self, step: int) -> float:
        return max(0.0, 1 - step / self.steps)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """beta_t = end + (beta_0 − end)·(1 + cos(π t/steps))/2, then `end`.

    Source: Loshchilov & Hutter 2017, arXiv 1608.03983, eq. 5 (there for the learning rate).
    Proved by: tests/beta/test_schedules.py::test_schedules_follow_their_closed_form
    """

    kind: Literal["cosine"] = "cosine"
    end: float
    steps: int
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _check(self)

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta that is negative or not finite."""
        return _start(beta)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state; reading and target play no part."""
        return _advance(state, self.end, self._remaining(state.step), self._remaining(state.step + 1))

    def _remaining(self, step: int) -> float:
        return (1 + math.cos(math.pi * step / self.steps)) / 2 if step < self.steps else 0.0


def _advance(state: ControllerState, end: float, now: float, then: float) -> ControllerState:
    """One step along a schedule, from the distance still to go: no memory of the first beta is needed."""
    beta = end if then == 0 else end + (state.beta - end) * then / now
    return replace(state, beta=beta, step=state.step + 1)


def _start(beta: float) -> ControllerState:
    if not (math.isfinite(beta) and beta >= 0):
        raise UsageError(f"beta must be finite and at least 0, not {beta}")
    return ControllerState(beta=beta)


def _check(law: Linear | Cosine) -> None:
    require_finite(law, nonnegative=("end",))
    if law.steps < 1:
        raise UsageError(f"{type(law).__name__}.steps must be at least 1, not {law.steps}")
