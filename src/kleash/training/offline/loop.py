"""The loop over rows that are there already: learn (look + loss), step, record; judge and save at their cadence.

    rows ─▶ learn ─▶ clip ─▶ update ─▶ record ─▶ judge (held out) ─▶ checkpoint

What is learned is the objective's; how weights move, what is saved and how a run ends is the same for all of them, and
as in an online run.
"""

import math
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from kleash.errors import NotFiniteError
from kleash.runlog.schema import Checkpoint, Event, Notice, RunEnd, Sample
from kleash.training import checkpoint, shelf
from kleash.training.careful import Careful
from kleash.training.ending import end_badly
from kleash.training.gauges import peak_memory_gb
from kleash.training.interrupt import stop_asked
from kleash.training.job import Sinks
from kleash.training.offline.bad import keep_bad
from kleash.training.offline.going_back import go_back, last_good
from kleash.training.offline.job import OfflineJob, OfflineState, Taught
from kleash.training.offline.memory import remembered
from kleash.training.stepping import step_whole


def train_offline(job: OfflineJob, state: OfflineState, sinks: Sinks) -> None:
    """Updates until the last one, or until the objective says that the run is over.

    The first Ctrl-C, SIGTERM or SIGHUP ends the run after the step in progress, with a checkpoint; a second one ends it
    at once. An update that is not finite is not made; after three in a row the run goes back (`recovery`).

    Raises:
        RunError: updates stay not finite, memory ran out, or a checkpoint could not be written.
        KeyboardInterrupt: after Ctrl-C, and as SignalledError after another signal.
    """
    moving = job.optimizer.register_step_pre_hook(lambda *_: setattr(state, "unmoved", False))
    try:
        with stop_asked() as asked:
            over = _judge(job, state, sinks)
            while over is None:
                over = "finished" if state.step == job.steps else _go_on(job, state, sinks)
                whole = state.step % job.train.checkpoint_every == 0 and not state.recovery.in_a_row
                if state.step > state.saved and (whole or state.step == job.steps or over or asked()):
                    _save(job, state, sinks)
                if over is None and (stop := asked()):
                    raise stop
        sinks.events.write(RunEnd(reason=over, step=state.step))
    except BaseException as error:
        end_badly(state, sinks, error, partial(_save, job, state, sinks))
        raise
    finally:
        moving.remove()


def _go_on(job: OfflineJob, state: OfflineState, sinks: Sinks) -> str | None:
    """One update and, where one is due, its evaluation. Why the run is over; None: it goes on, or back."""
    try:
        _take_step(job, state, sinks)
        row = state.recovery.in_a_row
        why = f"updates were not finite in {row} steps in a row" if state.recovery.due else None
        over = None if why else _judge(job, state, sinks)
    except NotFiniteError as error:
        why, over = str(error), None
    if why:
        go_back(job, state, sinks, why)
        if state.step:  # the same weights once more, now with the lower rate
            _save(job, state, sinks)
    return over


def _take_step(job: OfflineJob, state: OfflineState, sinks: Sinks) -> None:
    began, by_plan = time.perf_counter(), Careful(job, state, sinks)
    rate = job.train.rate(job.learning_rate, state.step, job.steps) * state.recovery.rate_factor
    for group in job.optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)
    job.optimizer.zero_grad(set_to_none=True)
    taught = job.objective.learn(state.step, state.own, by_plan)
    _write(sinks, taught.said)
    norm = float(torch.nn.utils.clip_grad_norm_(job.trained.trainable(), job.train.max_grad_norm))
    whole = math.isfinite(norm) and math.isfinite(taught.loss)
    if whole:
        step_whole(job.optimizer)
    _tell(job, state, sinks, taught, grad_norm=norm, rate=rate, seconds=time.perf_counter() - began, whole=whole)
    if whole:
        state.own = taught.own
    else:
        text = keep_bad(job.bad, state.step, taught, norm)
        sinks.notice("update_skipped", text, state.step)
    state.step, state.unmoved = state.step + 1, True
    state.recovery = state.recovery.after(0 if whole else 1)


def _tell(
    job: OfflineJob,
    state: OfflineState,
    sinks: Sinks,
    taught: Taught,
    *,
    grad_norm: float,
    rate: float,
    seconds: float,
    whole: bool,
) -> None:
    record: Any = job.objective.record(
        step=state.step,
        loss=taught.loss,
        grad_norm=grad_norm,
        learning_rate=rate,
        updates_skipped=int(not whole),
        seconds=round(seconds, 4),
        tokens_per_second=int(taught.rollout.mask.sum()) / seconds,
        peak_memory_gb=peak_memory_gb(),
        **taught.figures,
    )
    state.history.append(record)
    sinks.events.write(record)
    sinks.show(record, job.objective.line(record), job.steps)


def _judge(job: OfflineJob, state: OfflineState, sinks: Sinks) -> str | None:
    """Where an evaluation is due and not there yet: before the checkpoint of the same step, which is chosen by it."""
    every = job.train.evaluate_every or job.train.checkpoint_every
    if state.step in state.evaluations or (state.step % every and state.step != job.steps):
        return None
    judged = job.objective.judge(state.step, state.own, Careful(job, state, sinks))
    if judged is None:
        return None
    state.own, state.evaluations[state.step] = judged.own, judged.merit
    sinks.events.write(judged.event)
    sinks.say(f"after {state.step} steps  {'  '.join(job.objective.line(judged.event))}")
    _write(sinks, judged.said)
    if judged.over:
        sinks.notice("budget", f"the run ends here: {judged.over}", state.step)
    return "budget" if judged.over else None


def _write(sinks: Sinks, events: Iterable[Event]) -> None:
    """What an objective says besides its figures, each where it belongs."""
    for event in events:
        if isinstance(event, Notice):
            sinks.say(event.text)
        (sinks.samples if isinstance(event, Sample) else sinks.events).write(event)


def _save(job: OfflineJob, state: OfflineState, sinks: Sinks) -> None:
    state.saved = state.step
    plain, tensors = remembered(job, state)
    path = checkpoint.save(
        job.checkpoints, state.step, job.trained, job.loaded.tokenizer, job.optimizer, plain, tensors
    )
    sinks.events.write(Checkpoint(step=state.step, path=path.relative_to(job.run_dir).as_posix()))
    if not state.recovery.in_a_row:
        merit = state.evaluations.get(state.step)
        state.best = state.best.consider(job.run_dir, path, merit, partial(sinks.notice, "no_best_link"))
    wanted = {state.best.path or "", shelf.name(last_good(job.checkpoints, state.step, state.recovery) or 0)}
    try:
        shelf.prune(job.checkpoints, job.train.keep, wanted)
    except OSError as error:
        sinks.notice("checkpoint_stays", f"an old checkpoint could not be taken away: {error}", state.step)
