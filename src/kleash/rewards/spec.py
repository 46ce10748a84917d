"""One `[[rewards]]` table of the config."""

import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict

from kleash.errors import UsageError

#: Seconds one call of a reward may take unless its spec says otherwise.
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """Which reward, how much it counts and how long it may take.

    use: "vader", "exact", "numeric", "regex"; "mypackage.rewards:polite"; "./reward.py:polite"; or a function written
        for another library: "trl:./r.py:fn", "verl:./r.py:compute_score".
    weight: its factor in the total score. 0: watched and logged, but without any effect on training.
    name: its name in the log; by default the name of the function.
    timeout_s: seconds one call (one step's samples) may take. 0: no limit, called on the trainer's own thread.
    args: keyword arguments of the reward, such as { pattern = "^Yes" }; a class is built with them once.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    use: str
    weight: float = 1.0
    name: str | None = None
    timeout_s: float = TIMEOUT_S
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise UsageError(f"reward {self.use!r}: weight must be a finite number, not {self.weight}")
        if not (math.isfinite(self.timeout_s) and self.timeout_s >= 0):
            raise UsageError(f"reward {self.use!r}: timeout_s must be 0 (no limit) or more, not {self.timeout_s}")
        if self.name == "":
            raise UsageError(f"reward {self.use!r}: name is empty; leave it out to use the function's name")
