"""Checkpoints: complete or absent. A Hugging Face checkpoint, plus all that is needed to go on bit for bit.

Everything is written into a hidden directory, flushed to disk, and appears under its name by one atomic rename. A
list of file sizes inside tells a checkpoint that was cut short afterwards (a full disk, a broken copy). What the parts
of a run remember is handed in as plain values and tensors (`kleash.training.memory`); nothing here knows what it is.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from kleash.errors import RunError
from kleash.training import shelf

OPTIMIZER, RANDOM, STATE = "optimizer.safetensors", "random.safetensors", "kleash.json"


@runtime_checkable
class Trained(Protocol):
    """A module whose weights move: a `Policy`, or a reward model. `save` writes what `Reload` reads."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...
    def trainable(self) -> list[torch.nn.Parameter]: ...
    def save(self, directory: Path, tokenizer: Any) -> None: ...


#: The trained module of a checkpoint's directory.
Reload = Callable[[Path], Trained]


class Memory(dict[str, Any]):
    """What the parts of a run remember, by part."""

    def __missing__(self, part: str) -> Any:
        raise RunError(
            f"the checkpoint holds nothing of {part!r}: an older kleash wrote it. Go on with that version, or start a "
            "new run whose model.policy is this checkpoint"
        )


class Restored(NamedTuple):
    """What a checkpoint says besides weights: steps done, and what the parts of the run remember."""

    step: int
    memory: Memory
    tensors: dict[str, dict[str, torch.Tensor]]


def seed_random(seed: int) -> None:
    """Seeds Python's, numpy's and torch's global generators, which a reward may use: a run can then be repeated."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def save(
    root: Path,
    step: int,
    policy: Trained,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    memory: Mapping[str, Any],
    tensors: Mapping[str, dict[str, torch.Tensor]],
) -> Path:
    """Writes root/step-000100 whole or not at all.

    Args:
        memory: plain values that JSON holds, by the name of the part that remembers them.
        tensors: the same for tensors; each goes into a file `name`.safetensors.

    Raises:
        RunError: it could not be written (disk full, …); nothing half-written is left, older ones are untouched.
    """
    final, draft = root / shelf.name(step), shelf.hidden(root, step, shelf.DRAFT)
    try:
        shelf.sweep(root)
        draft.mkdir(parents=True)
        policy.save(draft, tokenizer)
        save_file(_optimizer_tensors(policy, optimizer), draft / OPTIMIZER)
        save_file(_random_tensors(), draft / RANDOM)
        for part, values in tensors.items():
            save_file(values, draft / f"{part}.safetensors")
        state = {
            "step": step,
            "memory": dict(memory),
            "tensors": list(tensors),
            "python_random": random.getstate(),
            "numpy_random": _numpy_state(),
            "files": {f.relative_to(draft).as_posix(): f.stat().st_size for f in _files(draft)},
        }
        (draft / STATE).write_text(json.dumps(state))
        for path in [*draft.rglob("*"), draft]:
            _flush(path)
        if final.exists():  # a void one, from before a resume
            shelf.remove(final)
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


def newest(root: Path, *, before: int | None = None) -> tuple[Path | None, list[str]]:
    """The newest complete checkpoint, of a step below `before` if given, and a sentence for each passed over."""
    said: list[str] = []
    for path in reversed(shelf.ordered(root)):
        step = shelf.step_of(path)
        if step is None or (before is not None and step >= before):
            continue
        fault = _fault(path)
        if fault is None:
            return path, said
        said.append(f"the checkpoint {path} is not complete ({fault}) and is passed over")
    return None, said


def restore(path: Path, reload: Reload, policy: Trained, optimizer: torch.optim.Optimizer) -> Restored:
    """Puts weights, optimizer and random states back, in place.

    Raises:
        RunError: the checkpoint is not complete, or is of another model.
    """
    fault = _fault(path)
    if fault is not None:
        raise RunError(f"the checkpoint {path} is not complete: {fault}")
    state = json.loads((path / STATE).read_text())
    saved = dict(reload(path).named_parameters())
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
    memory = Memory(state["memory"])
    return Restored(state["step"], memory, {part: load_file(path / f"{part}.safetensors") for part in state["tensors"]})


def restart(first: Trained, seed: int, policy: Trained, optimizer: torch.optim.Optimizer) -> None:
    """Puts the policy back to where the run began: the weights of `first`, no optimizer state, seeded generators."""
    start = dict(first.named_parameters())
    with torch.no_grad():
        for name, parameter in _trained(policy).items():
            parameter.copy_(start[name])
    optimizer.state.clear()
    seed_random(seed)


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


def _trained(policy: Trained) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in policy.named_parameters() if p.requires_grad}


def _optimizer_tensors(policy: Trained, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{name}|{key}": value.detach().clone().contiguous()
        for name, parameter in _trained(policy).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_optimizer(policy: Trained, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor]) -> None:
    trained = _trained(policy)
    optimizer.state.clear()
    for full, value in tensors.items():
        name, key = full.rsplit("|", 1)
        # The fused AdamW wants its step count where the weights are, as all else.
        optimizer.state[trained[name]][key] = value.to(trained[name].device)


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
