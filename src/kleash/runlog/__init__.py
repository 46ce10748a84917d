"""The run log: the contract between what trains and everything that reads. No torch."""

from kleash.runlog.jsonl import Writer, read
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
    to_json,
)

__all__ = [
    "SCHEMA_VERSION",
    "Checkpoint",
    "Evaluation",
    "Event",
    "Notice",
    "ReferenceChange",
    "Resume",
    "Rollback",
    "RunEnd",
    "RunStart",
    "Sample",
    "Writer",
    "current",
    "from_json",
    "last_of_each_step",
    "read",
    "to_json",
]
