"""How a run begins, and how it goes on: the first records of a log, and the state at the newest checkpoint."""

import datetime
import platform
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kleash
from kleash.errors import RunError, UsageError
from kleash.models.catalog import resolve
from kleash.models.fingerprint import differences
from kleash.records import Step
from kleash.runlog.jsonl import read
from kleash.runlog.schema import Evaluation, ReferenceChange, Resume, RunStart, current, last_of_each_step
from kleash.training import checkpoint, shelf
from kleash.training.best import Best, comparable, merit
from kleash.training.config import resolved
from kleash.training.data import digest
from kleash.training.evaluate import how
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.loosening import continued
from kleash.training.memory import recall
from kleash.training.planning import earlier
from kleash.training.toml import dump_config

PACKAGES = ("torch", "transformers", "peft", "safetensors", "tokenizers")


def begun(job: Job, sinks: Sinks) -> Progressing:
    sinks.events.write(
        RunStart(
            config=written_out(job),
            started=timestamp(),
            versions=versions(),
            fingerprints={"reference": job.reference.fingerprint, "prompts": digest(job.prompts)}
            | ({} if job.held_out is None else {"held_out": digest(job.held_out)})
            | ({} if job.texts is None else {"texts": job.texts.fingerprint}),
            argv=sys.argv,
            plan={"plan": asdict(job.plan), "work": asdict(job.work)},
        )
    )
    _pin(job, sinks)
    checkpoint.seed_random(job.config.train.seed)
    return Progressing(step=0, controller=job.controller.init(job.config.kl.first_beta), plan=job.plan)


def written_out(job: Job) -> dict[str, Any]:
    """The config as it is in force, with what was left to kleash."""
    return dump_config(resolved(job.config, learning_rate=job.learning_rate))


def _pin(job: Job, sinks: Sinks) -> None:
    """Marks the checkpoints of other runs that this one needs, to start and to be resumed."""
    for name in (job.config.model.policy, *(one.model for one in job.config.model.references)):
        if "@step-" in name or Path(name).expanduser().is_dir():
            try:
                shelf.pin(resolve(name), job.run_dir)
            except OSError as error:
                sinks.notice("not_pinned", f"{name} could not be marked as needed here: {error}; see that it stays")


def resumed(job: Job, log: Path, sinks: Sinks, force: bool) -> Progressing:
    """The state at the newest complete checkpoint; the reference must be the one in force before, unless forced."""
    beginning, now = started(log), job.reference.fingerprint
    forced = [e.fingerprint for e in read(log) if isinstance(e, ReferenceChange) and e.kind == "forced"]
    changed = differences(forced[-1] if forced else beginning.fingerprints["reference"], now)
    if changed and not force:
        raise RunError(
            f"the reference is not the one this run started with ({'; '.join(changed)}); its KL would mean something "
            'else from here on. Restore it, start a new run, or, if meant, add --force (in Python: resume="force")'
        )
    texts = beginning.fingerprints.get("texts")
    if texts and job.texts and texts != job.texts.fingerprint and not force:
        raise RunError(
            "algorithm.ptx.texts: the texts are not the ones this run started with. Restore them, start a new run, or "
            'go on with them by --force (in Python: resume="force")'
        )
    path, passed_over = checkpoint.newest(job.checkpoints)
    first = job.controller.init(job.config.kl.first_beta)
    state, planned = Progressing(step=0, controller=first, plan=job.plan), beginning.plan
    if path is None:
        checkpoint.seed_random(job.config.train.seed)
    else:
        restored = checkpoint.restore(path, job.reload, job.loaded.policy, job.optimizer)
        recall(job, state, restored)
        planned = restored.memory["plan"]
        state.controller = continued(job.config.kl, restored.memory["leash"], state.controller)
        state.step = state.saved = restored.step
    step = state.step
    for writer in (sinks.events, sinks.samples):
        writer.write(Resume(step=step, started=timestamp(), config=written_out(job)))
    if changed:
        sinks.events.write(ReferenceChange(step=step, kind="forced", fingerprint=now))
        sinks.notice("reference_forced", f"another reference from here on: {'; '.join(changed)}", step)
    for sentence in passed_over:
        sinks.notice("checkpoint_passed_over", sentence)
    for sentence in changes(beginning.config, written_out(job)):
        sinks.notice("config_changed", sentence, step)
    state.plan = earlier(planned, job)
    if state.plan != job.plan:
        sinks.say(f"it goes on by the plan it had: {state.plan}")
    sinks.say(f"resuming at step {step} " + ("(there is no complete checkpoint)" if path is None else f"from {path}"))
    events = read(log)
    state.history = [record for record in last_of_each_step(events) if record.step < step]
    state.evaluations = _comparable(job, [e for e in current(events) if isinstance(e, Evaluation)], sinks)
    state.best = _best(job, state.history, state.evaluations)
    return state


def _comparable(job: Job, evaluations: list[Evaluation], sinks: Sinks) -> list[Evaluation]:
    """Those of the held-out prompts of this job, drawn as it draws. With others gone, the best is chosen anew."""
    if job.held_out is None:
        return evaluations
    prompts, drawn = digest(job.held_out)["content"], how(job)
    kept = [done for done in evaluations if comparable(done, prompts, drawn)]
    if len(kept) < len(evaluations):
        number = len(evaluations) - len(kept)
        sinks.notice(
            "best_void",
            f"{number} of the evaluations so far are of other held-out prompts, or drawn another way: their scores do "
            "not compare with those to come, so none of their checkpoints counts as the best any more",
        )
    return kept


def _best(job: Job, history: list[Step], evaluations: list[Evaluation]) -> Best:
    """The best so far, from the log: the score it had when it was chosen. One after the step resumed at is void."""
    link = job.run_dir / "best"
    if link.exists() and not link.is_symlink():
        raise UsageError(f"{link} is not the link that a run makes there; move it away, then resume")
    if not link.exists():
        return Best()
    name = link.resolve().name
    done = int(name.removeprefix("step-"))
    if done > len(history):
        return Best()
    before = [record for record in history if record.step < done]
    score = merit(before, evaluations, job.config.kl.ceiling, held_out=job.held_out is not None)
    return Best() if score is None else Best(score, name)


def started(log: Path) -> RunStart:
    for event in current(read(log)):
        if isinstance(event, RunStart):
            return event
    raise RunError(f"{log} has no start of a run in it, so it cannot be resumed; start again with another out")


def changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Each setting that differs, in words."""
    said: list[str] = []
    for key in sorted(before.keys() | now.keys()):
        old, new, name = before.get(key), now.get(key), f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            said += changes(old, new, f"{name}.")
        elif old != new:
            said.append(f"{name} was {old!r} and is now {new!r}")
    return said


def versions() -> dict[str, str]:
    """kleash, Python and the packages that decide a run's numbers."""
    return {"kleash": kleash.__version__, "python": platform.python_version()} | {p: version(p) for p in PACKAGES}


def timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
