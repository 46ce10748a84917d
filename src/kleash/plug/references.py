"""What a guest measures the KL from, in a model that somebody else built and trains."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kleash.errors import RunError, UsageError

KIND, WEIGHTS = "reference.json", "reference.safetensors"


class Reference(Protocol):
    """Gives the model to ask, for as long as the context lasts."""

    def model(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class AdapterOff:
    """The trainer's own model with its adapters off: what a fresh adapter starts from."""

    policy: Any

    @contextmanager
    def model(self) -> Iterator[Any]:
        with self.policy.disable_adapter():
            yield self.policy


@dataclass(frozen=True, slots=True)
class Kept:
    """The trainer's own model with the weights that it started from: those that are trained are kept and put in."""

    policy: Any
    weights: dict[str, Tensor]

    @contextmanager
    def model(self) -> Iterator[Any]:
        parameters = dict(self.policy.named_parameters())
        now = {name: parameters[name].data for name in self.weights}
        try:
            for name, kept in self.weights.items():
                parameters[name].data = kept
            yield self.policy
        finally:
            for name, weight in now.items():
                parameters[name].data = weight


@dataclass(frozen=True, slots=True)
class Given:
    """Another model."""

    other: Any

    @contextmanager
    def model(self) -> Iterator[Any]:
        yield self.other


def build(asked: object, policy: Any, folder: Path, resumed: bool) -> AdapterOff | Kept | Given:
    """The reference: "start", a model, or the path or hub id of one.

    "start" is the policy as it is when training begins. What it takes to have it again after a resume is in `folder`.

    Raises:
        RunError: a resumed run without what it kept.
        UsageError: the weights are spread over processes, or the vocabularies differ.
    """
    if any(p.numel() == 0 for p in policy.parameters()):
        raise UsageError(
            "the model's weights are spread over processes (ZeRO-3, FSDP), and kleash's guest cannot see them"
        )
    if asked != "start":
        return Given(_other(asked, policy))
    if resumed:
        return _again(policy, folder)
    trained = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}
    fresh = hasattr(policy, "disable_adapter") and _changes_nothing(trained)
    folder.mkdir(parents=True, exist_ok=True)
    if not fresh:
        save_file({name: weight.cpu().contiguous() for name, weight in trained.items()}, folder / WEIGHTS)
    (folder / KIND).write_text(json.dumps({"kind": "adapter off" if fresh else "kept"}) + "\n")
    return AdapterOff(policy) if fresh else Kept(policy, trained)


def _changes_nothing(trained: dict[str, Tensor]) -> bool:
    """Only LoRA matrices are trained, and each product is 0: B is, as peft makes them."""
    if not all(".lora_A." in name or ".lora_B." in name for name in trained):
        return False
    return all(not bool(weight.any()) for name, weight in trained.items() if ".lora_B." in name)


def _again(policy: Any, folder: Path) -> AdapterOff | Kept:
    try:
        kind = json.loads((folder / KIND).read_text())["kind"]
        if kind == "adapter off":
            return AdapterOff(policy)
        kept = load_file(folder / WEIGHTS)
    except (OSError, ValueError, KeyError):
        raise RunError(
            f"this run is resumed, and what its KL was measured from is not in {folder}: the policy as it is now would "
            "pass for the reference. Give the reference by name (reference=…), or start anew"
        ) from None
    parameters = dict(policy.named_parameters())
    if kept.keys() - parameters.keys():
        raise RunError(f"the reference in {folder} is of another model: it has weights that this one has not")
    return Kept(policy, {name: weight.to(parameters[name]) for name, weight in kept.items()})


def _other(asked: object, policy: Any) -> Any:
    if isinstance(asked, str | Path):
        from transformers import AutoModelForCausalLM

        from kleash.models.catalog import resolve

        asked = AutoModelForCausalLM.from_pretrained(str(resolve(str(asked))), dtype=policy.dtype)
    if not isinstance(asked, torch.nn.Module):
        raise UsageError(f'reference = {asked!r} is no reference; use "start", a model, or the name of one')
    other: Any = asked
    ours, theirs = (m.get_output_embeddings().weight.shape[0] for m in (policy, other))
    if ours != theirs:
        raise UsageError(
            f"the reference has {theirs} tokens and the policy {ours}: their distributions cannot be compared"
        )
    return other.to(next(policy.parameters()).device).requires_grad_(False).eval()
