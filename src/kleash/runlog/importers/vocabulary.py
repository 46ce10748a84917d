"""What a trainer's keys mean: the plain records of a vocabulary, and of a log whose keys are still the trainer's."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kleash.records import Estimator, Unit
from kleash.runlog.importers.table import Table
from kleash.runlog.series import KLMeaning, SampleText, SavedModel

Samples = Callable[[tuple[int, ...] | None], list[SampleText]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KLSeries:
    """One key that holds a KL, or two whose difference is one (`key` − `minus`). The rest as in KLTag.

    zero_is_absent: the trainer writes 0 where it measures nothing.
    """

    key: str
    meaning: KLMeaning
    estimator: Estimator | None
    unit: Unit | None
    note: str
    clamp: float | None = None
    zero_is_absent: bool = False
    minus: str | None = None

    def but(self, **changes: Any) -> "KLSeries":
        return replace(self, **changes)


@dataclass(slots=True, kw_only=True)
class Raw:
    """A log as read, before its keys are understood.

    smoothing: over how many steps a row averages; None where the container does not tell. config: what it tells of the
    run's settings. marks: keys that tell the trainer but hold no number.
    """

    path: Path
    table: Table
    container: str
    config: dict[str, Any] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    smoothing: int | None = None
    checkpoints: tuple[SavedModel, ...] = ()
    sample_steps: tuple[int, ...] = ()
    sample_marks: Mapping[int, Hashable] = field(default_factory=dict)
    samples: Samples = lambda steps: []
    ended: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """One trainer's keys, in their bare form (`bare`).

    signs: groups of keys; a log that has all of one group is this trainer's. columns: key → column of TrainLog; of two
    keys for one column the first that the log has is taken. families: regular expression → template of the column.
    kl: the first of a meaning that the log has is the column, the others are columns "kl_ref/KEY" as logged. absent:
    why a log has no kl_ref. averages: rows are means over the steps since the row before.
    strength: the setting that is beta, for trainers that do not log it. target_unit: of the column `target`. adapt: the
    vocabulary as this log's settings make it.
    """

    trainer: str
    method: str
    signs: tuple[tuple[str, ...], ...]
    columns: Mapping[str, str]
    families: tuple[tuple[str, str], ...] = ()
    kl: tuple[KLSeries, ...] = ()
    absent: str = "this log has no KL to the reference"
    averages: bool = False
    strength: str | None = None
    target_unit: Unit | None = None
    adapt: "Callable[[Vocabulary, Raw], Vocabulary]" = lambda vocabulary, raw: vocabulary

    @property
    def label(self) -> str:
        return f"{self.trainer} {self.method}".strip()

    def fits(self, keys: set[str]) -> bool:
        return any(keys.issuperset(group) for group in self.signs)

    def but(self, **changes: Any) -> "Vocabulary":
        return replace(self, **changes)


def bare(key: str) -> str:
    """A key without what its container adds: "train/kl" → "kl", "eval_reward" → "eval/reward"."""
    if key.startswith("train/"):
        return key[6:]
    return "eval/" + key[5:] if key.startswith("eval_") else key
