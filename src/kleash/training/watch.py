"""The monitor beside the loop: it reads the run's own log, as `kleash watch` would, and acts as `[watch]` says.

What it reads is what was written, so a finding is the same live and afterwards, and a run that was killed comes to the
same again: which findings are old is in the log, and beta and learning rate are in the checkpoints.
"""

from collections.abc import Sequence
from dataclasses import replace

from kleash.monitor import Watched
from kleash.runlog.findings import Finding, Found
from kleash.training import checkpoint, shelf
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.recovery import MOST_ROLLBACKS
from kleash.training.rollback import go_back
from kleash.training.watch_config import Action

#: By how much "tighten" raises beta.
TIGHTEN = 2.0
#: Rules that find a policy which beta cannot bring back: the KL's gradient vanishes with its entropy (docs/kl.md §7).
COLLAPSED = frozenset({"entropy collapse", "degenerate", "one answer", "kl runaway"})


def look(job: Job, state: Progressing, sinks: Sinks) -> str | None:
    """Looks where one is due, tells what is new, and acts. "finding" where the run is to end; None: it goes on."""
    every, step = job.config.watch.every, state.step
    if every == 0 or not state.history or (step % every and step != job.config.train.steps):
        return None
    new = _new(job, state, sinks, step - 1)
    action = _action(job, state, new) if new else "warn"
    for finding in new:
        sinks.events.write(Found(step=step - 1, action=action, finding=finding))
        sinks.say(f"{finding.headline} since step {finding.since}: {finding.what} [{finding.rule}; {action}]")
    if not new:
        return None
    match action:
        case "tighten":
            state.controller = replace(state.controller, beta=_tighter(job, state.controller.beta))
        case "lower_lr":
            state.recovery = state.recovery.lower()
        case "rollback":
            first = min(new, key=_certainly_before)
            go_back(job, state, sinks, f"{first.headline} since step {first.since}", to=_clean(job, first))
        case "stop":
            sinks.notice("finding", f"the run ends here: {new[0].headline}", step - 1)
            return "finding"
        case "warn":
            pass
    return None


def _new(job: Job, state: Progressing, sinks: Sinks, step: int) -> list[Finding]:
    """Warnings and alarms of the log as it stands that are not yet in it; none, said aloud, where it cannot be read."""
    state.watched = watched = state.watched or Watched(job.run_dir, budget=job.config.kl.ceiling)
    try:
        found = watched.look()[1].findings
    except Exception as error:  # whatever keeps the monitor from looking, the training goes on
        why = f"{type(error).__name__}: {error}"
        sinks.notice(
            "watch", f"the monitor could not look, and looks again in {job.config.watch.every} steps: {why}", step
        )
        return []
    old = {(event.finding.rule, event.finding.alarm_step) for event in watched.found}
    return [one for one in found if one.severity != "note" and (one.rule, one.alarm_step) not in old]


def _action(job: Job, state: Progressing, new: Sequence[Finding]) -> Action:
    """As the config says; but a collapsed policy is rolled back where it would only be tightened."""
    asked = job.config.watch.on_finding
    if asked == "tighten" and any(finding.rule in COLLAPSED for finding in new):
        asked = "rollback"
    if asked == "rollback" and state.recovery.rollbacks >= MOST_ROLLBACKS:
        return "stop"  # it comes to the same again
    if asked == "tighten" and state.controller.beta == 0:
        return "warn"  # nothing times two
    return asked


def _tighter(job: Job, beta: float) -> float:
    most = getattr(job.config.kl.law, "beta_max", None)
    return TIGHTEN * beta if most is None else min(TIGHTEN * beta, most)


def _certainly_before(finding: Finding) -> int:
    """The first step at which the change may have begun, as `monitor.engine` tells clean checkpoints from suspect."""
    return finding.since - (finding.within or 0)


def _clean(job: Job, finding: Finding) -> int:
    """The step of the newest checkpoint that is clean; 0, the run's start, without one."""
    path, _ = checkpoint.newest(job.checkpoints, before=_certainly_before(finding) + 1)
    return 0 if path is None else shelf.step_of(path) or 0
