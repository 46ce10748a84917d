"""What the monitor found in a run. Standard library only: a finding is also an event of a run's log."""

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["note", "warning", "alarm"]
#: What loggers that have alerts call these.
LEVELS: dict[Severity, str] = {"alarm": "error", "warning": "warn", "note": "info"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that a rule found.

    rule: its name. headline: for the first line of a summary, in capitals where it is an alarm. what: one sentence.
    alarm_step: the first step at which the rule could say it (it used records up to there alone). since: the step of
    the change itself, with `within` (± steps). sure: "sure", "likely", "possible". numbers: by name, as shown.
    before, after: samples. clean, suspect: the last clean and the first suspect checkpoint. do: what to do, by line.
    """

    rule: str
    severity: Severity
    headline: str
    what: str
    alarm_step: int
    since: int
    within: int | None = None
    sure: Literal["sure", "likely", "possible"] = "likely"
    numbers: dict[str, float | str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    clean: str | None = None
    suspect: str | None = None
    do: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotEvaluated:
    """A rule that had nothing to judge by. needs: what it would have needed, in words."""

    rule: str
    needs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The monitor found something after `step`, and this was done about it ("warn": nothing but to say so)."""

    step: int
    action: str
    finding: Finding


def dated(since: int | None, within: int | None) -> str:
    """A change's step, and how far off it may be."""
    return f"{since}" + (f" (±{within})" if within else "")


def told(finding: Finding) -> str:
    """A finding in one sentence, with its date."""
    return f"step {dated(finding.since, finding.within)}: {finding.what}"
