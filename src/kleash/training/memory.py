"""What the parts of a run remember between steps, as a checkpoint holds it: one entry for each part."""

from dataclasses import asdict, replace
from typing import Any

import torch

from kleash.algorithms import StepPrice
from kleash.models.fingerprint import differences
from kleash.models.moving import Moving
from kleash.records import ControllerState
from kleash.rewards.chain import ShapeMemory
from kleash.training import entropy
from kleash.training.checkpoint import Restored
from kleash.training.data import digest
from kleash.training.job import Job, Progressing
from kleash.training.loosening import leash
from kleash.training.moving import kept, put_back
from kleash.training.recovery import Recovery
from kleash.training.tailwatch import TailWatch


def remembered(job: Job, state: Progressing) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """Plain values and tensors, by part: what `kleash.training.checkpoint.save` writes beside the weights."""
    plain = {
        "controller": asdict(state.controller),
        "leash": leash(job.config.kl),
        "shaping": state.shaping.plain(),
        "prompts": digest(job.prompts),
        "tail": state.tail.plain(),
        "redrawn": state.redrawn,
        "step_price": None if state.step_price is None else asdict(state.step_price),
        "entropy": entropy.kept(job.config.entropy, state.entropy),
        "reference": kept(job.reference, state.moves),
        "plan": {"plan": asdict(state.plan), "work": asdict(job.work)},
        "recovery": {"learning_rate": job.learning_rate, "state": asdict(state.recovery)},
    }
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    if isinstance(job.reference, Moving) and job.reference.moved:
        tensors["reference"] = job.reference.tensors()
    return plain, tensors


def recall(job: Job, state: Progressing, restored: Restored) -> None:
    """Puts what was remembered back, as it was. A changed config is not looked at here.

    Raises:
        UsageError, RunError: the reference had moved, and cannot be put back to where it was.
    """
    state.controller = ControllerState(**restored.memory["controller"])
    state.shaping = _shaping(job, restored.memory)
    state.tail = TailWatch.of(restored.memory["tail"])
    state.redrawn = restored.memory["redrawn"]
    price = restored.memory["step_price"]
    state.step_price = None if price is None else StepPrice(**price)
    state.entropy = entropy.put_back(job.config.entropy, restored.memory["entropy"])
    state.moves = put_back(
        job.reference, restored.memory["reference"], restored.tensors.get("reference"), restored.step
    )
    recovery = restored.memory["recovery"]
    # Another learning rate is a person's own answer to what broke: counting starts again.
    same = recovery["learning_rate"] == job.learning_rate
    state.recovery = Recovery(**recovery["state"]) if same else Recovery()


def _shaping(job: Job, memory: dict[str, Any]) -> ShapeMemory:
    """The reference's scores are by prompt number: of other prompts, or of another reference, they are forgotten."""
    shaping = ShapeMemory.of(memory["shaping"])
    other = memory["prompts"] != digest(job.prompts)
    if other or differences(memory["reference"]["origin"], job.reference.fingerprint):
        return replace(shaping, reference={})
    return shaping
