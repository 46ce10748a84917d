"""Checkpoints: complete or absent. A Hugging Face checkpoint, plus all that is needed to go on bit for bit.

Everything is written into a hidden directory, flushed to disk, and appears under its name by one atomic rename. A
list of file sizes inside tells a checkpoint that was cut short afterwards (a full disk, a broken copy).
"""

import json
import os
import random
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from kleash.errors import RunError
from kleash.models.load import load
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.records import ControllerState
from kleash.training.config import KLSpec
from kleash.training.loosening import leash

OPTIMIZER, RANDOM, STATE = "optimizer.safetensors", "random.safetensors", "kleash.json"


class Restored(NamedTuple):
    """What a checkpoint says besides weights: steps done, its leash, and the states of beta and of the shapes."""

    step: int
    controller: ControllerState
    leash: dict[str, Any]
    shaping: dict[str, Any]


def seed_random(seed: int) -> None:
    """Seeds Python's, numpy's and torch's global generators, which a reward may use: a run can then be repeated."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def save(
    root: Path,
    step: int,
    policy: Policy,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    controller: ControllerState,
    kl: KLSpec,
    shaping: dict[str, Any],
) -> Path:
    """Writes root/step-000100 whole or not at all.

    Raises:
        RunError: it could not be written (disk full, …); nothing half-written is left, older ones are untouched.
    """
    final, draft = root / f"step-{step:06d}", root / f".step-{step:06d}.part"
    try:
        for left in root.glob(".step-*.part"):  # by a process that was killed here
            shutil.rmtree(left, ignore_errors=True)
        draft.mkdir(parents=True)
        policy.save(draft, tokenizer)
        save_file(_optimizer_tensors(policy, optimizer), draft / OPTIMIZER)
        save_file(_random_tensors(), draft / RANDOM)
        state = {
            "step": step,
            "controller": asdict(controller),
            "leash": leash(kl),
            "shaping": shaping,
            "python_random": random.getstate(),
            "numpy_random": _numpy_state(),
            "files": {f.relative_to(draft).as_posix(): f.stat().st_size for f in _files(draft)},
        }
        (draft / STATE).write_text(json.dumps(state))
        for path in [*draft.rglob("*"), draft]:
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)  # a void one, from before a resume
        os.rename(draft, final)
        _flush(root)
    except Exception as error:
        shutil.rmtree(draft, ignore_errors=True)
        if not isinstance(error, OSError) and "No space" not in str(error) and "I/O error" not in str(error):
            raise
        raise RunError(
            f"the checkpoint {final} could not be written: {error}. Free some space and go on with --resume; "
            "earlier checkpoints are untouched"
        ) from error
    return final


def newest(root: Path) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, and a sentence for each newer one that is not."""
    said: list[str] = []
    for path in sorted(root.glob("step-" + "[0-9]" * 6 + "*"), reverse=True):
        fault = _fault(path)
        if fault is None:
            return path, said
        said.append(f"the checkpoint {path} is not complete ({fault}) and is passed over")
    return None, said


def restore(path: Path, spec: ModelSpec, policy: Policy, optimizer: torch.optim.Optimizer) -> Restored:
    """Puts weights, optimizer and random states back, in place.

    Raises:
        RunError: the checkpoint is not complete, or is of another model.
    """
    fault = _fault(path)
    if fault is not None:
        raise RunError(f"the checkpoint {path} is not complete: {fault}")
    state = json.loads((path / STATE).read_text())
    saved = dict(load(replace(spec, policy=str(path))).policy.named_parameters())
    with torch.no_grad():
        for name, parameter in _trained(policy).items():
            if name not in saved or saved[name].shape != parameter.shape:
                raise RunError(f"the checkpoint {path} is of another model: it has no {name} of this shape")
            parameter.copy_(saved[name])
    _restore_optimizer(policy, optimizer, load_file(path / OPTIMIZER))
    tensors = load_file(path / RANDOM)
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    np.random.set_state(tuple(state["numpy_random"]))
    version, internal, gauss = state["python_random"]
    random.setstate((version, tuple(internal), gauss))
    return Restored(state["step"], ControllerState(**state["controller"]), state["leash"], state["shaping"])


def _fault(path: Path) -> str | None:
    try:
        files = json.loads((path / STATE).read_text())["files"]
        for name, size in files.items():
            found = (path / name).stat().st_size
            if found != size:
                return f"{name} has {found} of {size} bytes"
    except OSError as error:
        return f"{Path(error.filename or STATE).name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{STATE} is cut short or damaged"
    return None


def _trained(policy: Policy) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _optimizer_tensors(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}|{key}": value.detach().clone().contiguous()
        for name, parameter in _trained(policy).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_optimizer(policy: Policy, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    trained = _trained(policy)
    optimizer.state.clear()
    for full, value in tensors.items():
        name, key = full.rsplit("|", 1)
        # AdamW keeps its step count on the CPU whatever the device of the weights.
        device = value.device if key == "step" else trained[name].device
        optimizer.state[trained[name]][key] = value.to(device)


def _random_tensors() -> dict[str, torch.Tensor]:
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return tensors


def _numpy_state() -> list[Any]:
    state: Any = np.random.get_state()
    name, keys, position, has_gauss, gauss = state
    return [name, keys.tolist(), int(position), int(has_gauss), float(gauss)]


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
