"""A run on rows that are there already: begun or gone on with, its log opened, its report written."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.models.fingerprint import differences
from kleash.runlog.boards import opened, require
from kleash.runlog.jsonl import Writer, read
from kleash.runlog.schema import Resume, RunStart, offline_steps
from kleash.training import checkpoint
from kleash.training.api import check_out
from kleash.training.beginning import changes, started, timestamp, versions
from kleash.training.job import Sinks
from kleash.training.offline.going_back import relink
from kleash.training.offline.job import OfflineJob, OfflineState
from kleash.training.offline.loop import train_offline
from kleash.training.offline.memory import recall
from kleash.training.offline.progress import OfflineProgress
from kleash.training.offline.run import OfflineRun
from kleash.training.toml import dump_config


def run_offline(
    config: Any,
    build: Callable[[Any], OfflineJob],
    *,
    resume: bool = False,
    force: bool = False,
    check_only: bool = False,
    progress: OfflineProgress | None = None,
) -> OfflineRun:
    """Builds the job of a config, runs it, and writes its report.

    Raises:
        UsageError: `out` already holds a run and resume is False, or the other way round.
        RunError: on resume other rows or another model without `force`; else see `train_offline`.
    """
    run = OfflineRun(Path(config.out))
    log = run.path / "events.jsonl"
    check_out(run.path, log, resume)
    require(config.log.to)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"out = {config.out!r} cannot be a run's directory: {error.strerror}") from None
    job = build(config)
    check_room(job)
    progress = progress or OfflineProgress()
    for line in job.described:
        progress.notice(line)
    if check_only:
        return run
    with (
        Writer(log) as file,
        Writer(run.path / "samples.jsonl") as samples,
        opened(config.log.to, config.log.project, file, dump_config(job.config), progress.notice) as events,
        progress,
    ):
        sinks = Sinks(events, samples, progress.update, progress.notice)
        state = _resumed(job, log, sinks, force) if resume else _begun(job, sinks)
        train_offline(job, state, sinks)
    run.report()
    return run


def check_room(job: OfflineJob) -> None:
    """The disk has room for two checkpoints: weights in their dtype and two fp32 moments.

    Raises:
        RunError: it has not.
    """
    size = sum(p.numel() * (p.element_size() + 8) for p in job.trained.trainable()) / 1e9
    free = shutil.disk_usage(job.run_dir).free / 1e9
    if free < 2 * size:
        raise RunError(
            f"{job.run_dir} has {free:.2f} GB free and a checkpoint takes about {size:.2f} GB; make room for at least "
            "two, or choose another out"
        )


def _begun(job: OfflineJob, sinks: Sinks) -> OfflineState:
    sinks.events.write(
        RunStart(
            verb=job.verb,
            config=dump_config(job.config),
            started=timestamp(),
            versions=versions(),
            fingerprints=job.fingerprints,
            argv=sys.argv,
            plan={"plan": asdict(job.plan), "work": asdict(job.work)},
        )
    )
    checkpoint.seed_random(job.train.seed)
    return OfflineState(step=0, own=job.objective.begin(), plan=job.plan)


def _resumed(job: OfflineJob, log: Path, sinks: Sinks, force: bool) -> OfflineState:
    """The state at the newest complete checkpoint; rows and models must be those it began with, unless forced."""
    beginning = started(log)
    for name, before in beginning.fingerprints.items():
        now = job.fingerprints.get(name, {})
        if before != now and not force:
            changed = "; ".join(differences(before, now)) or f"{before} before, {now} now"
            raise RunError(
                f"{name}: not what this run started with ({changed}). Restore it, start a new run, or go on all the "
                'same by --force (in Python: resume="force")'
            )
    path, passed_over = checkpoint.newest(job.checkpoints)
    state = OfflineState(step=0, own=job.objective.begin(), plan=job.plan)
    checkpoint.seed_random(job.train.seed)
    if path is not None:
        recall(job, state, checkpoint.restore(path, job.reload, job.trained, job.optimizer))
        state.saved = state.step
    config = dump_config(job.config)
    for writer in (sinks.events, sinks.samples):
        writer.write(Resume(step=state.step, started=timestamp(), config=config))
    if path is not None:
        relink(job, state, sinks)
    for sentence in passed_over:
        sinks.notice("checkpoint_passed_over", sentence)
    for sentence in changes(beginning.config, config):
        sinks.notice("config_changed", sentence, state.step)
    where = "(there is no complete checkpoint)" if path is None else f"from {path}"
    sinks.say(f"resuming at step {state.step} {where}")
    state.history = offline_steps(read(log))
    return state
