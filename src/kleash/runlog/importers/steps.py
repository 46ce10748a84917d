"""Which number of a row is its step: loggers have one of their own, trainers put another into the row."""

import re
from collections.abc import Mapping
from typing import Any

from kleash.runlog.importers.numbers import whole

#: In this order: what a trainer says comes before what its logger counts.
STEP_KEYS = (
    "train/global_step",
    "training/global_step",
    "global_step",
    "global_step/max_steps",
    "rollout/step",
    "train/step",
    "eval/global_step",
    "eval/step",
    "iteration",
    "current_steps",
)
#: The logger's own count; it goes on with rows that are no step's (tables, machines' figures).
COUNTS = ("step", "Step", "_step")
_OF = re.compile(r"(\d{1,18})/\d+")


class Steps:
    """Finds the step of each row. key: the user's choice.

    Once a row has told the trainer's step, rows without it are none. slime counts rollouts and updates apart: a row of
    updates takes the step of the rollout that it learns from, and is one of several there (`several` is then true of
    the last row).
    """

    def __init__(self, key: str | None = None) -> None:
        self.keys, self.counts = (STEP_KEYS, COUNTS) if key is None else ((key,), ())
        self.several = self._told = False
        self._rollout: int | None = None

    def of(self, row: Mapping[str, Any], otherwise: int | None = None) -> int | None:
        self.several = False
        for key in self.keys:
            if key in row and (step := _step(row[key])) is not None:
                self._told = True
                if key == "rollout/step":
                    self._rollout = step
                self.several = key == "train/step" and self._rollout is not None
                return self._rollout if self.several else step
        if self._told:
            return None
        return next((step for key in self.counts if (step := _step(row.get(key))) is not None), otherwise)


def _step(value: Any) -> int | None:
    match = _OF.fullmatch(value) if isinstance(value, str) else None
    return whole(match[1] if match else value)
