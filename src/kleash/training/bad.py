"""What is kept of a batch whose loss or gradient was not finite, so that one can look at it afterwards."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from kleash.models.tensor_files import save_whole
from kleash.tensors import Batch, Look
from kleash.training.gauges import Collected
from kleash.training.learn import Learned
from kleash.whole import write_whole

#: Steps of a run whose batches are kept: the first ones, which show how it began.
MOST = 8


def keep_bad(folder: Path, step: int, beta: float, collected: Collected, batch: Batch, learned: Learned) -> str:
    """Writes the batch of a step that skipped updates into `folder`; in words, what was skipped and where it is."""
    first = learned.skipped[0]
    said = (
        f"step {step}: {len(learned.skipped)} of its updates not made, for they are not finite "
        f"(loss {first.loss:g}, gradient norm {first.grad_norm:g})"
    )
    try:
        kept = _write(folder, step, beta, collected, batch, learned)
    except OSError as error:
        return f"{said}; its batch could not be written to {folder}: {error.strerror}"
    return f"{said}; " + (f"its batch is in {kept}" if kept else f"{folder} holds {MOST} steps and takes no more")


def _write(folder: Path, step: int, beta: float, collected: Collected, batch: Batch, learned: Learned) -> Path | None:
    """Writes step-000012.safetensors and .json; None if there are MOST steps already.

    The tensors are the rollout, the scores and what the policy and the reference said of every token; the reference's
    hidden states are left out for their size.
    """
    file = folder / f"step-{step:06d}.safetensors"
    if not file.exists() and len(list(folder.glob("step-*.safetensors"))) >= MOST:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(_tensors(batch, learned.look))
    updates = [one._asdict() | {"loss": str(one.loss), "grad_norm": str(one.grad_norm)} for one in learned.skipped]
    said = {
        "step": step,
        "beta": beta,
        "updates": updates,
        "not_finite": {name: int((~value.isfinite()).sum()) for name, value in tensors.items() if _odd(value)},
        "prompts": collected.prompts,
        "completions": collected.texts,
        "scores": collected.scored.by_name,
    }
    write_whole(file.with_suffix(".json"), json.dumps(said, indent=1))
    save_whole(file, tensors)
    return file


def _odd(value: Tensor) -> bool:
    return value.is_floating_point() and not bool(torch.isfinite(value).all())


def _tensors(batch: Batch, look: Look) -> Iterator[tuple[str, Tensor]]:
    rollout = batch.rollout
    yield from (
        ("prompt_ids", rollout.prompt_ids),
        ("prompt_mask", rollout.prompt_mask),
        ("completion_ids", rollout.completion_ids),
        ("mask", rollout.mask),
        ("group", rollout.group),
        ("sampler", rollout.sampler),
        ("score", batch.score),
        ("scored", batch.scored),
        ("logprobs", look.logprobs),
        ("entropy", look.entropy),
    )
    for name, value in (("ref", look.ref), ("kl", look.kl), ("old", batch.old), ("policy_step", rollout.policy_step)):
        if value is not None:
            yield name, value
