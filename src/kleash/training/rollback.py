"""Back to the last good checkpoint, with a lower learning rate. Killed in between, a run comes to the same again."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from kleash.errors import NotFiniteError
from kleash.models.load import load
from kleash.models.moving import Moving
from kleash.rewards.chain import ShapeMemory
from kleash.runlog.schema import Rollback
from kleash.training import checkpoint, shelf
from kleash.training.best import Best
from kleash.training.ending import Ending
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.memory import recall
from kleash.training.moving import Moves
from kleash.training.recovery import MOST_ROLLBACKS, Recovery
from kleash.training.tailwatch import TailWatch


@runtime_checkable
class Returning(Protocol):
    """What the way back needs of a job."""

    @property
    def checkpoints(self) -> Path: ...
    @property
    def bad(self) -> Path: ...
    @property
    def learning_rate(self) -> float: ...


def last_good(root: Path, step: int, recovery: Recovery) -> int | None:
    """The step of the newest checkpoint known to be good, when `step` is computed next; None without one."""
    path, _ = checkpoint.newest(root, before=recovery.first_bad(step))
    return None if path is None else shelf.step_of(path)


def go_back(job: Job, state: Progressing, sinks: Sinks, why: str, *, to: int | None = None) -> None:
    """Puts the run back to its last good checkpoint, or to its start. Later checkpoints go, later records are void.

    Whoever calls saves the state afterwards, so that a run that is killed from then on keeps its lower rate. to: the
    step of another checkpoint, or 0.

    Raises:
        NotFiniteError: the run has gone back too often, or was broken from its first update on.
    """
    broken, step = state.step, way_back(job, state, why) if to is None else to
    for path in shelf.ordered(job.checkpoints):
        if (shelf.step_of(path) or 0) > step:
            shelf.remove(path)
    recovery, config = state.recovery.gone_back(), job.config
    if step == 0:
        first = load(config.model, seed=config.train.seed).policy
        checkpoint.restart(first, config.train.seed, job.loaded.policy, job.optimizer)
        state.controller, state.shaping = job.controller.init(config.kl.first_beta), ShapeMemory()
        state.tail, state.step_price, state.entropy, state.redrawn = TailWatch(), None, None, 0
        state.moves = Moves()
        if isinstance(job.reference, Moving):
            job.reference.restart()
    else:
        path = job.checkpoints / shelf.name(step)
        recall(job, state, checkpoint.restore(path, job.reload, job.loaded.policy, job.optimizer))
    state.step, state.saved, state.recovery, state.unmoved = step, 0, recovery, True
    state.history = [record for record in state.history if record.step < step]
    state.evaluations = [done for done in state.evaluations if done.step <= step]
    if state.best.path is not None and not (job.checkpoints / state.best.path).exists():
        state.best = Best()
    rate = job.learning_rate * recovery.rate_factor
    sinks.say(f"{why}: going back to step {step}, the learning rate is {rate:g} from there on")
    for writer in (sinks.events, sinks.samples):
        writer.write(Rollback(step=step, from_step=broken, why=why, learning_rate=rate, number=recovery.rollbacks))


def way_back(job: Returning, state: Ending, why: str) -> int:
    """The step to go back to: that of the last good checkpoint, or 0, the start of the run.

    Raises:
        NotFiniteError: the run has gone back too often, or was broken from its first update on.
    """
    advice = (
        f"Look at the batches in {job.bad}; set train.learning_rate or train.max_grad_norm lower, and go on with "
        "--resume"
    )
    if state.recovery.rollbacks >= MOST_ROLLBACKS:
        rate = job.learning_rate * state.recovery.rate_factor
        raise NotFiniteError(f"{why}, after going back {MOST_ROLLBACKS} times, at learning rate {rate:g}. {advice}")
    if state.recovery.first_bad(state.step) == 0:
        raise NotFiniteError(f"{why}, and no finite update was ever made, so there is nothing to go back to. {advice}")
    return last_good(job.checkpoints, state.step, state.recovery) or 0
