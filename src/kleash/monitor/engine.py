"""All rules over one log, and what they say together: the verdict, the first line, which checkpoints to keep."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from kleash.monitor.rule import Rule
from kleash.monitor.rules import RULES, SIGNS
from kleash.monitor.rules.reward import risen
from kleash.monitor.view import Measured, View
from kleash.records import Target
from kleash.runlog.findings import Finding, NotEvaluated
from kleash.runlog.series import TrainLog

Verdict = Literal["healthy", "findings", "not evaluated"]
_ORDER = {"alarm": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the monitor says of a log.

    verdict: "findings" from a warning on. headline: one line. since: the step at which the change that the headline
    tells of began, `within` ± steps. findings: the gravest first. clean: the last checkpoint before anything was wrong;
    suspect: those after, the first one first. evaluated: names of the rules that had what they need.
    """

    verdict: Verdict
    headline: str
    findings: tuple[Finding, ...]
    not_evaluated: tuple[NotEvaluated, ...]
    evaluated: tuple[str, ...]
    since: int | None = None
    within: int | None = None
    clean: Path | None = None
    suspect: tuple[Path, ...] = ()


def examine(
    log: TrainLog,
    *,
    budget: Target | None = None,
    rules: Sequence[Rule] = RULES,
    measured: Measured | None = None,
) -> Examination:
    """Runs every rule.

    A finding with alarm_step t rests on records up to t alone. So a growing log may be examined again and again, and
    what was found stays found.

    Args:
        budget: a ceiling on kl_ref that the person gave.
        measured: what looks at the same log have measured of its texts; it is added to.
    """
    view = View(log, budget, {} if measured is None else measured)
    found: list[Finding] = []
    missing: list[NotEvaluated] = []
    evaluated: list[str] = []
    if view.rows:
        for rule in rules:
            with np.errstate(over="ignore", invalid="ignore"):  # a log may hold infinite numbers
                said = rule.scan(view)
            if isinstance(said, NotEvaluated):
                missing.append(said)
            else:
                evaluated.append(rule.name)
                found += said
    gaming = _together(view, found)
    found = [*gaming, *sorted(found, key=lambda f: (_ORDER[f.severity], f.alarm_step))]
    grave = [f for f in found if f.severity != "note"]
    found = [_tied(log, f) for f in found]
    if not evaluated:
        return Examination(
            verdict="not evaluated", headline="nothing here can be judged", findings=(), not_evaluated=tuple(missing),
            evaluated=(),
        )  # fmt: skip
    first = grave[0] if grave else None
    since = None if first is None else first.since
    clean, suspect = _checkpoints(log, since, None if first is None else first.within)
    return Examination(
        verdict="findings" if grave else "healthy",
        headline="healthy" if first is None else first.headline,
        findings=tuple(found),
        not_evaluated=tuple(missing),
        evaluated=tuple(evaluated),
        since=since,
        within=None if first is None else first.within,
        clean=clean,
        suspect=suspect,
    )


_NUMBER = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _together(view: View, found: Sequence[Finding]) -> list[Finding]:
    """GAMING THE REWARD: the reward stands above its beginning, and signs of at least two kinds have come up.

    The alarm is at the second kind's; what came later makes it surer.
    """
    up = risen(view)
    signs = sorted((f for f in found if f.rule in SIGNS), key=lambda f: f.alarm_step)
    kinds: dict[str, Finding] = {}
    for sign in signs:
        kinds.setdefault(SIGNS[sign.rule], sign)
    if up is None or len(kinds) < 2:
        return []
    ordered = sorted(kinds.values(), key=lambda f: f.alarm_step)
    at = ordered[1].alarm_step
    rows = view.log.step <= at
    if not up[rows].any():
        return []
    # Two signs date the change apart: it lies between them.
    low, high = sorted(f.since for f in ordered[:2])
    within = max((high - low + 1) // 2, *(f.within or 1 for f in ordered[:2]))
    number = _NUMBER.get(len(kinds), str(len(kinds)))
    return [
        Finding(
            rule="gaming the reward",
            severity="alarm",
            headline="GAMING THE REWARD",
            what=f"the reward rises, and {number} independent signs say that it is not for what it should reward: "
            + "; ".join(f.what for f in ordered),
            alarm_step=at,
            since=(low + high) // 2,
            within=within,
            sure="sure" if len(kinds) > 2 else "likely",
            numbers={"signs": float(len(kinds))},
            before=next((f.before for f in ordered if f.before), []),
            after=next((f.after for f in ordered if f.after), []),
            do=list(dict.fromkeys(line for f in ordered for line in f.do)),
        )
    ]


def _tied(log: TrainLog, finding: Finding) -> Finding:
    """With the checkpoints on both sides of its change."""
    if finding.severity == "note":
        return finding
    clean, suspect = _checkpoints(log, finding.since, finding.within)
    return replace(
        finding,
        clean=None if clean is None else str(clean),
        suspect=str(suspect[0]) if suspect else None,
    )


def _checkpoints(log: TrainLog, since: int | None, within: int | None) -> tuple[Path | None, tuple[Path, ...]]:
    """The last one saved before anything can have changed, and those saved after it may have."""
    if since is None:
        return (log.checkpoints[-1].path if log.checkpoints else None), ()
    start = since - (within or 0)
    before = [saved.path for saved in log.checkpoints if saved.step <= start]
    return (before[-1] if before else None), tuple(s.path for s in log.checkpoints if s.step > start)
