"""The loop: sample, reward, look, measure, credit, loss, record; the controller's beta goes back to the start.

    prompts ─▶ sample ─▶ score ─▶ reference ─▶ learn (look + credit + loss + step) ─▶ record
                 ▲                                                                      │
                 └─────────── state = controller.update(state, reading) ◀───────────────┘

No stage reaches behind itself. Beta is read in one line, in `take_step`.
"""

import time
from dataclasses import replace
from functools import partial

import torch

from kleash.errors import NotFiniteError
from kleash.models.counting import TokenCounter
from kleash.records import ControllerState, Reading, Step
from kleash.rewards.ensembles import disagreements
from kleash.runlog.schema import Checkpoint, ReferenceChange, RunEnd, Sample
from kleash.tensors import Batch
from kleash.training import checkpoint, shelf, watch
from kleash.training.bad import keep_bad
from kleash.training.best import merit
from kleash.training.budget import exceeded
from kleash.training.careful import Careful
from kleash.training.collect import Clock, collect
from kleash.training.ending import end_badly
from kleash.training.entropy import entropy_figures, next_entropy, with_bonus
from kleash.training.evaluate import due, evaluate
from kleash.training.gauges import Collected, controller_figures, gauge, update_figures
from kleash.training.interrupt import stop_asked
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.judging import tell_judges
from kleash.training.learn import Learned, learn, step_size
from kleash.training.memory import remembered
from kleash.training.moving import moved, stalled_for, told
from kleash.training.passes import Update, observe
from kleash.training.progress import evaluation_line
from kleash.training.rollback import go_back, last_good
from kleash.training.spread import spread_notices
from kleash.training.staleness import staleness_figures
from kleash.training.step_price import next_price, price_figures, priced
from kleash.training.tailwatch import watch_tail

#: Every so many steps with a single update, one more forward of so many prompts measures how far it went (kl_old).
STEP_SIZE_EVERY, STEP_SIZE_PROMPTS = 10, 8
#: Samples of each step that go into samples.jsonl: all of the first prompts' groups up to this many.
SAMPLES_LOGGED = 64


def train(job: Job, state: Progressing, sinks: Sinks) -> None:
    """Steps until the last, then one more measurement of the finished policy; or until the KL budget is spent.

    The first Ctrl-C, SIGTERM or SIGHUP ends the run after the step in progress, with a checkpoint; a second one ends it
    at once. A step that fails before its first update ends it with a checkpoint of the weights, which it had not yet
    moved. A policy that no longer gives finite updates goes back to the last good checkpoint (`recovery`).

    Raises:
        RunError: the reward failed, updates stay not finite, or a checkpoint could not be written.
        KeyboardInterrupt: after Ctrl-C, and as SignalledError after another signal.
    """
    total, every = job.config.train.steps, job.config.train.checkpoint_every
    counter = TokenCounter(job.loaded.policy, *job.reference.policies)
    moving = job.optimizer.register_step_pre_hook(lambda *_: setattr(state, "unmoved", False))
    try:
        with stop_asked() as asked:
            _evaluate(job, state, sinks, counter)
            _move_reference(job, state, sinks)
            over = None
            while over is None:
                over = _go_on(job, state, sinks, counter)
                whole = state.step % every == 0 and not state.recovery.in_a_row
                if state.step > state.saved and (whole or state.step == total or over or asked()):
                    _save(job, state, sinks)
                if over is None and (stop := asked()):
                    raise stop
        sinks.events.write(RunEnd(reason=over, step=state.step))
    except BaseException as error:
        end_badly(state, sinks, error, partial(_save, job, state, sinks))
        raise
    finally:
        moving.remove()
        counter.close()


def _go_on(job: Job, state: Progressing, sinks: Sinks, counter: TokenCounter) -> str | None:
    """One step, or after the last the measurement of what came out. Why the run is over; None: it goes on, or back."""
    try:
        if state.step == job.config.train.steps:
            _measure_only(job, state, sinks, counter)
            return _budget_spent(job, state, sinks) or "finished"
        take_step(job, state, sinks, counter)
        _evaluate(job, state, sinks, counter)
        _move_reference(job, state, sinks)
        at = state.step
        if (ending := watch.look(job, state, sinks)) or state.step != at:  # or it went back
            if not ending and state.step:
                _save(job, state, sinks)
            return ending
        row = state.recovery.in_a_row
        why = f"updates were not finite in {row} steps in a row" if state.recovery.due else None
    except NotFiniteError as error:
        why = str(error)
    if why:
        go_back(job, state, sinks, why)
        if state.step:  # the same weights once more, now with the lower rate: a run killed from here on goes on with it
            _save(job, state, sinks)
        return None
    return _budget_spent(job, state, sinks)


def _budget_spent(job: Job, state: Progressing, sinks: Sinks) -> str | None:
    """ "budget" where the last reading is above it."""
    said = exceeded(job.config.kl.ceiling, state.history[-1])
    if said:
        sinks.notice("budget", f"the run ends here: {said}", state.history[-1].step)
    return "budget" if said else None


def take_step(job: Job, state: Progressing, sinks: Sinks, counter: TokenCounter) -> None:
    clock, settings, began = Clock(counter), job.config, time.perf_counter()
    by_plan = Careful(job, state, sinks)
    collected, batch = collect(job, state, clock, by_plan)
    beta = state.controller.beta
    rate = _warm(job.learning_rate * state.recovery.rate_factor, state.step, job)
    for group in job.optimizer.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)  # a critic's bias has its own
    update = with_bonus(priced(job.update, state.step_price), settings.entropy, state.entropy)
    texts = job.texts.of_step(state.step, job.updates) if job.texts else ()
    with clock.phase("update"):
        learned = learn(job.loaded.policy, job.optimizer, batch, update, by_plan, beta=beta, texts=texts)
    kl_old = learned.kl_old
    if kl_old is None and state.step % STEP_SIZE_EVERY == 0:
        with clock.phase("step_size"):
            kl_old = _step_size(job, learned, batch, update, by_plan)

    target = settings.kl.target_at(state.step)
    record = gauge(state.step, beta, target, collected, learned.look, _era(job, state))
    tail = watch_tail(state.tail, record, collected.shaped.scored.total)
    reading = record.kl_ref_token if target is not None and target.unit == "nats/token" else record.kl_ref
    controller = job.controller.update(state.controller, reading, target)
    price = next_price(update, state.step_price, learned.kl_old)
    entropy = next_entropy(settings.entropy, state.entropy, record.entropy)
    seconds = clock.seconds | {"total": time.perf_counter() - began}
    record = replace(
        record,
        **update_figures(learned, job.update, batch.rollout),
        **staleness_figures(batch.rollout, state.history, learned.updates),
        **controller_figures(controller),
        budget=settings.kl.budget,
        **price_figures(update, price),
        **entropy_figures(update, entropy),
        tail=tail.figures,
        kl_old=kl_old,
        learning_rate=rate,
        seconds={name: round(s, 4) for name, s in seconds.items()},
        tokens_forward=counter.take(),
        tokens_per_second=int(batch.rollout.mask.sum()) / seconds["total"],
    )
    _tell(state, record, collected, learned.look.kl, sinks, settings.train.steps)
    tell_judges(job.rewarders, state.step, sinks)
    if learned.skipped:
        text = keep_bad(job.bad, state.step, beta, collected, batch, learned)
        sinks.notice("update_skipped", text, state.step)
    _warn(state, controller, tail.warning, sinks)
    state.controller, state.shaping, state.tail = controller, collected.shaped.memory, tail.watch
    state.redrawn += collected.redrawn
    state.step_price, state.entropy, state.step, state.unmoved = price, entropy, state.step + 1, True
    state.recovery = state.recovery.after(len(learned.skipped))


def _step_size(job: Job, learned: Learned, batch: Batch, update: Update, by_plan: Careful) -> Reading:
    """kl_old after a step's only update, on its first prompts."""
    first = batch.rollout.groups(0, min(batch.rollout.n_prompts, STEP_SIZE_PROMPTS))
    moved = by_plan(partial(observe, job.loaded.policy, first, None, update)).logprobs
    return step_size(learned.look.logprobs[: moved.shape[0], : moved.shape[1]], moved, first)


def _warn(state: Progressing, controller: ControllerState, tail: str | None, sinks: Sinks) -> None:
    """What a person should know of the step just recorded: a held beta, a heavy tail, groups without spread."""
    said = {} if tail is None else {"heavy_tail": tail}
    if controller.held and controller.held != state.controller.held:
        said["controller_held"] = f"beta stays at {state.controller.beta:.4g}: {controller.held}"
    for what, text in (said | spread_notices(state.history)).items():
        sinks.notice(what, text, state.step)


def _evaluate(job: Job, state: Progressing, sinks: Sinks, counter: TokenCounter) -> None:
    """Where one is due and not there yet: before the checkpoint of the same step, which is chosen by it."""
    if not due(job, state.step) or any(done.step == state.step for done in state.evaluations):
        return
    done = evaluate(job, state.step, counter, Careful(job, state, sinks))
    state.evaluations.append(done)
    sinks.events.write(done)
    sinks.say(evaluation_line(done))


def _move_reference(job: Job, state: Progressing, sinks: Sinks) -> None:
    """Where it follows the policy and a move is due. After the last step it stays, for the policy to be measured."""
    law, step = job.config.model.reference_update, state.step
    if law is None or step == job.config.train.steps:
        return
    stalled = stalled_for(step, state.moves.last, state.history, state.evaluations if job.held_out else None)
    state.moves, share = moved(law, job.reference, state.moves, step, stalled)
    if share is None or state.moves.fingerprint is None:
        return
    sinks.events.write(ReferenceChange(step=step, kind=law.kind, fingerprint=state.moves.fingerprint, share=share))
    if law.kind != "ema" or state.moves.number == 1:
        sinks.notice("reference_moved", told(law.kind, state.moves, job.config.kl.target_at(step)), step - 1)


def _era(job: Job, state: Progressing) -> list[Step]:
    """The steps whose kl_ref is of the reference in force. One that follows little by little stays the same one."""
    law = job.config.model.reference_update
    return state.history if law is None or law.kind == "ema" else state.history[state.moves.last :]


def _measure_only(job: Job, state: Progressing, sinks: Sinks, counter: TokenCounter) -> None:
    """The finished policy's own figures, on the prompts that the next step would have taken."""
    clock, by_plan = Clock(counter), Careful(job, state, sinks)
    collected, batch = collect(job, state, clock, by_plan)
    with clock.phase("update"):
        look = by_plan(partial(observe, job.loaded.policy, batch.rollout, batch.reference, job.update))
    target = job.config.kl.target_at(state.step)
    record = gauge(state.step, state.controller.beta, target, collected, look, _era(job, state))
    record = replace(record, budget=job.config.kl.budget, tokens_forward=counter.take())
    _tell(state, record, collected, look.kl, sinks, job.config.train.steps)
    tell_judges(job.rewarders, state.step, sinks)


def _warm(rate: float, step: int, job: Job) -> float:
    """Linear warm-up over the first updates, constant after."""
    warmup = job.config.train.warmup_updates
    return rate * min(1.0, (step * job.updates + 1) / (warmup + 1))


def _tell(
    state: Progressing, record: Step, collected: Collected, kl: torch.Tensor | None, sinks: Sinks, total: int
) -> None:
    state.history.append(record)
    sinks.events.write(record)
    mask = collected.rollout.mask
    sums = None if kl is None else (kl * mask).sum(1).tolist()
    apart = {name: disagreements(members) for name, members in collected.scored.members.items()}
    for i in range(min(SAMPLES_LOGGED, len(collected.texts))):
        sinks.samples.write(
            Sample(
                step=record.step,
                prompt=collected.prompts[i],  # pyright: ignore[reportArgumentType]
                completion=collected.texts[i],
                score=collected.scored.total[i],
                scores={name: values[i] for name, values in collected.scored.by_name.items()},
                disagreement={name: values[i] for name, values in apart.items()},
                kl_ref=None if sums is None else sums[i],
                length=int(mask[i].sum()),
                truncated=bool(collected.rollout.truncated[i]),
            )
        )
    sinks.show(record, (collected.prompts[0], collected.texts[0], collected.scored.total[0]), total)


def _save(job: Job, state: Progressing, sinks: Sinks) -> None:
    state.saved = state.step
    memory, tensors = remembered(job, state)
    path = checkpoint.save(
        job.checkpoints, state.step, job.loaded.policy, job.loaded.tokenizer, job.optimizer, memory, tensors
    )
    last = state.history[-1]
    name = path.relative_to(job.run_dir).as_posix()
    sinks.events.write(Checkpoint(step=state.step, path=name, score=last.score, kl_ref=last.kl_ref))
    if not state.recovery.in_a_row:
        score = merit(state.history, state.evaluations, job.config.kl.ceiling, held_out=job.held_out is not None)
        state.best = state.best.consider(job.run_dir, path, score, partial(sinks.notice, "no_best_link"))
    wanted = {state.best.path or "", shelf.name(last_good(job.checkpoints, state.step, state.recovery) or 0)}
    try:
        shelf.prune(job.checkpoints, job.config.train.keep, wanted)
    except OSError as error:
        sinks.notice("checkpoint_stays", f"an old checkpoint could not be taken away: {error}", state.step)
