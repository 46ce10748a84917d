"""PPO's clip range as a setting: one number, the two sides apart, or none."""

from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict

from kleash.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRange:
    """Ratios are taken as in [1 − low, 1 + high]. low = 1: no lower bound, for a ratio is never below 0."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.low <= 1 and self.high > 0):
            raise UsageError(
                f"algorithm.clip = {{ low = {self.low}, high = {self.high} }}: low must lie above 0 and at most at 1, "
                "high above 0 (DAPO has low = 0.2, high = 0.28)"
            )


#: `0.2`, `{ low = 0.2, high = 0.28 }`, or "none".
Clip = float | Literal["none"] | ClipRange


def check_clip(clip: Clip) -> None:
    """Raises UsageError for a symmetric range that is not in (0, 1); the two sides of a ClipRange check themselves.

    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347 eq. 7.
    Proved by: tests/algorithms/test_configs.py::test_refused_settings
    """
    if not (clip == "none" or isinstance(clip, ClipRange) or 0 < float(clip) < 1):
        raise UsageError(
            f'algorithm.clip = {clip} must lie between 0 and 1 (0.2 is usual; "none" for no clip; '
            "{ low = 0.2, high = 0.28 } for two different sides)"
        )


def sides(clip: Clip) -> tuple[float, float] | None:
    """(low, high) of a clip range; None for none.

    Source: the definition.
    Proved by: tests/algorithms/test_configs.py::test_a_number_clips_both_sides_alike
    """
    if isinstance(clip, ClipRange):
        return clip.low, clip.high
    return None if clip == "none" else (float(clip), float(clip))
