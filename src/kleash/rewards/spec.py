"""One `[[rewards]]` table of the config."""

import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict

from kleash.errors import UsageError
from kleash.rewards.ensembles import Combine
from kleash.rewards.shapes import ShapeConfig

#: Seconds one call of a reward may take unless its spec says otherwise.
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """Which reward, how much it counts and how long it may take.

    use: "vader", "exact", "numeric", "regex"; "mypackage.rewards:polite"; "./reward.py:polite"; a function written for
        another library: "trl:./r.py:fn", "verl:./r.py:compute_score"; a reward model: "model:./rm"; a judge:
        "judge:kleash:smollm2", "judge:http://127.0.0.1:8000/v1". A list of them is an ensemble.
    weight: its factor in the total score. 0: watched and logged, but without any effect on training.
    name: its name in the log; by default the name of the function.
    timeout_s: seconds one call (one step's samples) may take. 0: no limit, called on the trainer's own thread.
    args: keyword arguments of the reward, such as { pattern = "^Yes" }; a class is built with them once. An ensemble's
        go to each of its members.
    shape: what is done to its scores before they are weighed, in this order (kleash.rewards.shapes).
    combine: of an ensemble: "mean" (where left out), "min" (worst case), "uwo" (mean − uwo_lambda × variance).
    uwo_lambda: left out, 0.1.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    use: str | tuple[str, ...]
    weight: float = 1.0
    name: str | None = None
    timeout_s: float = TIMEOUT_S
    args: dict[str, Any] = field(default_factory=dict)
    shape: tuple[ShapeConfig, ...] = ()
    combine: Combine | None = None
    uwo_lambda: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.use, str) and len(set(self.use)) < max(2, len(self.use)):
            raise UsageError(f"reward {list(self.use)!r}: an ensemble needs at least two different members")
        if self.combine is not None and isinstance(self.use, str):
            raise UsageError(f"reward {self.use!r}: combine is for an ensemble, and use names one reward")
        if self.uwo_lambda is not None and self.combine != "uwo":
            raise UsageError(f'reward {self.use!r}: uwo_lambda has no effect without combine = "uwo"')
        if self.uwo_lambda is not None and not (math.isfinite(self.uwo_lambda) and self.uwo_lambda >= 0):
            raise UsageError(f"reward {self.use!r}: uwo_lambda must be 0 or more, not {self.uwo_lambda}")
        if not math.isfinite(self.weight):
            raise UsageError(f"reward {self.use!r}: weight must be a finite number, not {self.weight}")
        if not (math.isfinite(self.timeout_s) and self.timeout_s >= 0):
            raise UsageError(f"reward {self.use!r}: timeout_s must be 0 (no limit) or more, not {self.timeout_s}")
        if self.name == "":
            raise UsageError(f"reward {self.use!r}: name is empty; leave it out to use the function's name")
