"""Several tuned models of one base, as plain records. Standard library only."""

from dataclasses import dataclass
from typing import Literal

from kleash.drift.records import AUDIT_SCHEMA, Interval, Kind, Score, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One of several tuned models of one base. forward: its off-task KL (base‖tuned), had as `kind` says.

    gap: that, less the one before's, paired by text if both are exact. score: of the task. page: with its own audit.
    """

    name: str
    step: int | None = None
    forward: Interval | None = None
    kind: Kind = "exact"
    gap: Interval | None = None
    score: Score | None = None
    verdict: Verdict | None = None
    page: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Several tuned models of one base: "ranks" has the nearest first, "curve" a run's checkpoints by step."""

    kind: Literal["ranks", "curve"]
    base: str
    rows: list[Standing]
    task: str | None
    command: str
    made: str
    partial: str | None = None
    schema: int = AUDIT_SCHEMA
