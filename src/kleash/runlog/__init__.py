"""The run log: the contract between what trains and everything that reads. No torch."""

from kleash.runlog.jsonl import Writer, read
from kleash.runlog.judged import Judged
from kleash.runlog.offline import OfflineEvaluation, OfflineStep, TextEvaluation, TextStep
from kleash.runlog.schema import (
    SCHEMA_VERSION,
    Checkpoint,
    Evaluation,
    Event,
    Notice,
    ReferenceChange,
    Resume,
    Rollback,
    RunEnd,
    RunStart,
    Sample,
    current,
    from_json,
    last_of_each_step,
    offline_evaluations,
    offline_steps,
    to_json,
)

__all__ = [
    "SCHEMA_VERSION",
    "Checkpoint",
    "Evaluation",
    "Event",
    "Judged",
    "Notice",
    "OfflineEvaluation",
    "OfflineStep",
    "ReferenceChange",
    "Resume",
    "Rollback",
    "RunEnd",
    "RunStart",
    "Sample",
    "TextEvaluation",
    "TextStep",
    "Writer",
    "current",
    "from_json",
    "last_of_each_step",
    "offline_evaluations",
    "offline_steps",
    "read",
    "to_json",
]
