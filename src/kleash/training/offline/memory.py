"""What a run on rows that are there already remembers between steps, as a checkpoint holds it."""

from dataclasses import asdict
from typing import Any

from kleash.models.plan import Plan, Work
from kleash.training.best import Best
from kleash.training.checkpoint import Restored
from kleash.training.offline.job import OfflineJob, OfflineState, Tensors
from kleash.training.recovery import Recovery


def remembered(job: OfflineJob, state: OfflineState) -> tuple[dict[str, Any], Tensors]:
    """Plain values and tensors, by part. `best`: before this checkpoint, whose own merit stands beside it."""
    own, tensors = job.objective.keep(state.own)
    plain = {
        "own": own,
        "best": asdict(state.best),
        "merit": state.evaluations.get(state.step),
        "evaluated": state.step in state.evaluations,
        "plan": {"plan": asdict(state.plan), "work": asdict(job.work)},
        "recovery": {"learning_rate": job.learning_rate, "state": asdict(state.recovery)},
    }
    return plain, tensors


def recall(job: OfflineJob, state: OfflineState, restored: Restored) -> None:
    """Puts the state back to that of a checkpoint whose weights are in place."""
    memory = restored.memory
    state.step, state.unmoved = restored.step, True
    state.own = job.objective.recall(memory["own"], restored.tensors, restored.step)
    state.evaluations = {restored.step: memory["merit"]} if memory["evaluated"] else {}
    saved = memory["plan"]
    if Work(**saved["work"]) == job.work and saved["plan"]["path"] in job.loaded.paths:
        state.plan = Plan(**saved["plan"])
    recovery = memory["recovery"]
    # Another learning rate is a person's own answer to what broke: counting starts again.
    same = recovery["learning_rate"] == job.learning_rate
    state.recovery = Recovery(**recovery["state"]) if same else Recovery()
    best = Best(**memory["best"])
    state.best = best if best.path and (job.checkpoints / best.path).exists() else Best()
