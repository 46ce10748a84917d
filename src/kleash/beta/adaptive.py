"""The published rules that multiply beta by a factor near one (Ziegler 2019) or by two (PPO 2017)."""

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

#: K of the paper, and the horizon, in episodes, of the authors' code.
PAPER_GAIN = 0.1
CODE_HORIZON = 10_000


def ziegler_factor(error: float, gain: float) -> float:
    """1 + gain·error: what one step multiplies beta by, for an error already clipped.

    Source: Ziegler et al. 2019, arXiv 1909.08593, §2.2.
    Proved by: tests/beta/test_adaptive.py::test_ziegler_printed_figures
    """
    return 1 + gain * error


@dataclass(frozen=True, kw_only=True)
class Ziegler:
    """beta ← beta·(1 + gain·e), with e = (KL − target)/target clipped to ±error_clip.

    `form = "code"`: gain = sequences of the step / horizon, as in the authors' code: slow in small batches.
    `form = "paper"`: gain = K = 0.1, as in the paper. None takes the form's published number.

    Source: Ziegler et al. 2019, arXiv 1909.08593, §2.2, and github.com/openai/lm-human-preferences.
    Proved by: tests/beta/test_adaptive.py::test_ziegler_printed_figures
    """

    kind: Literal["ziegler"] = "ziegler"
    form: Literal["code", "paper"] = "code"
    horizon: int | None = None
    gain: float | None = None
    error_clip: float = 0.2
    beta_min: float = BETA_MIN
    beta_max: float = BETA_MAX
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        require_bounds(self.beta_min, self.beta_max)
        require_finite(self, positive=("error_clip",))
        if self.form not in ("code", "paper"):
            raise UsageError(f'Ziegler.form {self.form!r} is unknown; use "code" or "paper"')
        stray = "gain" if self.form == "code" else "horizon"
        if getattr(self, stray) is not None:
            raise UsageError(f'Ziegler.{stray} has no effect in form = "{self.form}"; remove it or change form')
        if self.horizon is not None:
            require_finite(self, positive=("horizon",))
        if self.gain is not None:
            require_finite(self, positive=("gain",))
        if self.form == "paper":
            self._check_gain(self._gain(1))

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta of 0 or out of bounds."""
        return start(beta, self.beta_min, self.beta_max)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state.

        Raises:
            UsageError: no target; a reading of another kind or unit; a horizon so short that beta would turn
                negative.
        """
        error, held = steer(reading, target)
        if error is None or reading is None:
            return hold(state, held)
        gain = self._gain(reading.n_sequences)
        self._check_gain(gain)
        error, saturated = saturate(state, error, self.error_clip)
        beta = state.beta * ziegler_factor(error, gain)
        return move(state, beta, self.beta_min, self.beta_max, saturated=saturated)

    def _gain(self, n_sequences: int) -> float:
        if self.form == "paper":
            return PAPER_GAIN if self.gain is None else self.gain
        return n_sequences / (CODE_HORIZON if self.horizon is None else self.horizon)

    def _check_gain(self, gain: float) -> None:
        if gain * self.error_clip >= 1:
            raise UsageError(
                f"Ziegler's gain {gain:g} times error_clip {self.error_clip:g} is not below 1, so one reading "
                'could make beta zero or negative; lengthen the horizon (form = "code") or lower the gain '
                '(form = "paper")'
            )


@dataclass(frozen=True, kw_only=True)
class PPORule:
    """beta doubles when KL > 1.5·target, halves when KL < target/1.5: it holds the band, not the target.

    Published for the KL between old and new policy; here it is fed kl_ref. In the band beta does not move.

    Source: Schulman et al. 2017, arXiv 1707.06347, §4.
    Proved by: tests/beta/test_adaptive.py::test_ppo_rule_on_each_side_of_its_band
    """

    kind: Literal["ppo"] = "ppo"
    band: float = 1.5
    factor: float = 2.0
    beta_min: float = BETA_MIN
    beta_max: float = BETA_MAX
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        require_bounds(self.beta_min, self.beta_max)
        require_finite(self, positive=("band", "factor"))
        if not (self.band > 1 and self.factor > 1):
            raise UsageError(f"PPORule.band and .factor must be above 1, not {self.band} and {self.factor}")

    def init(self, beta: float) -> ControllerState:
        """The state at step 0. Raises UsageError for a beta of 0 or out of bounds."""
        return start(beta, self.beta_min, self.beta_max)

    def update(self, state: ControllerState, reading: Reading | None, target: Target | None) -> ControllerState:
        """The next step's state. Raises UsageError: no target, or a reading of another kind or unit."""
        error, held = steer(reading, target)
        if error is None:
            return hold(state, held)
        ratio = 1 + error  # KL / target
        if ratio > self.band:
            beta = state.beta * self.factor
        elif ratio < 1 / self.band:
            beta = state.beta / self.factor
        else:
            beta = state.beta
        return move(state, beta, self.beta_min, self.beta_max)
