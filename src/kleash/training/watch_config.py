"""[watch]: the monitor looks at the run as it goes, and what is then done."""

from dataclasses import dataclass
from typing import Literal

from kleash.errors import UsageError
from kleash.training.section import STRICT

Action = Literal["warn", "tighten", "lower_lr", "rollback", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """[watch]: what is done about a finding of the monitor, a warning or an alarm.

    on_finding: "warn" says it and writes it into the log; "tighten" also raises beta; "lower_lr" halves the learning
    rate; "rollback" goes back to the last checkpoint before the change, with half the learning rate; "stop" saves and
    ends the run. every: steps between looks; 0 never looks.
    """

    __pydantic_config__ = STRICT

    on_finding: Action = "warn"
    every: int = 20

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UsageError(f"watch.every = {self.every} must be at least 1 step, or 0 never to look")
        if self.every == 0 and self.on_finding != "warn":
            raise UsageError(f'watch.on_finding = "{self.on_finding}" would never act with watch.every = 0')
