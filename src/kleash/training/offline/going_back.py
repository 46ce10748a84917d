"""Back to the last good checkpoint, with a lower learning rate, as an online run goes back (`training.rollback`)."""

from functools import partial

from kleash.runlog.schema import Rollback
from kleash.training import checkpoint, shelf
from kleash.training.best import Best
from kleash.training.job import Sinks
from kleash.training.offline.job import OfflineJob, OfflineState
from kleash.training.offline.memory import recall
from kleash.training.rollback import last_good, way_back

__all__ = ["go_back", "last_good"]


def go_back(job: OfflineJob, state: OfflineState, sinks: Sinks, why: str) -> None:
    """Puts the run back to its last good checkpoint, or to its start. Later checkpoints go, later records are void.

    Raises:
        NotFiniteError: the run has gone back too often, or was broken from its first update on.
    """
    broken, step = state.step, way_back(job, state, why)
    for path in shelf.ordered(job.checkpoints):
        if (shelf.step_of(path) or 0) > step:
            shelf.remove(path)
    recovery = state.recovery.gone_back()
    if step == 0:
        checkpoint.restart(job.first(), job.train.seed, job.trained, job.optimizer)
        state.step, state.own, state.evaluations, state.best = 0, job.objective.begin(), {}, Best()
    else:
        path = job.checkpoints / shelf.name(step)
        recall(job, state, checkpoint.restore(path, job.reload, job.trained, job.optimizer))
        relink(job, state, sinks)
    state.saved, state.recovery, state.unmoved = 0, recovery, True
    state.history = [record for record in state.history if record.step < step]
    rate = job.learning_rate * recovery.rate_factor
    sinks.say(f"{why}: going back to step {step}, with {rate:g} as the learning rate's peak from there on")
    for writer in (sinks.events, sinks.samples):
        writer.write(Rollback(step=step, from_step=broken, why=why, learning_rate=rate, number=recovery.rollbacks))


def relink(job: OfflineJob, state: OfflineState, sinks: Sinks) -> None:
    """The checkpoint that the state was put back to, weighed as it was when it was saved."""
    merit = state.evaluations.get(state.step)
    path = job.checkpoints / shelf.name(state.step)
    state.best = state.best.consider(job.run_dir, path, merit, partial(sinks.notice, "no_best_link"))
