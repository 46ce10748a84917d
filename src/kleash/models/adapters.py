"""LoRA adapters: put one on, load one, keep a frozen snapshot of one, and switch between them for a moment."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open
from torch import nn

from kleash.errors import RunError, UsageError
from kleash.models.spec import Adapter

#: peft's name for the adapter that is trained, and kleash's for the frozen one the run started from.
POLICY_ADAPTER = "default"
SNAPSHOT_ADAPTER = "reference"


def is_adapted(model: Any) -> bool:
    return isinstance(model, PeftModel)


def attach(model: Any, adapter: Adapter, base: str, seed: int) -> Any:
    """A fresh adapter on `model`: B = 0, so it changes nothing yet. Its A is drawn from `seed`."""
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha or adapter.rank,  # type: ignore[arg-type]  # peft says int, divides as float
        target_modules=adapter.targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"no adapter fits model.adapter.targets = {adapter.targets!r}: {error}") from None
    adapted.peft_config[POLICY_ADAPTER].base_model_name_or_path = base
    return adapted


def load_adapter(model: Any, directory: Path) -> Any:
    """The adapter stored in `directory` on its base, to be trained further.

    Raises:
        RunError: it does not fit this model, in shape or in the layers it names.
    """
    try:
        adapted = PeftModel.from_pretrained(model, str(directory), is_trainable=True)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise RunError(f"the adapter in {directory} was made for another base model: {reason}") from None
    stored = _names_in(directory / "adapter_model.safetensors")
    expected = set(get_peft_model_state_dict(adapted, adapter_name=POLICY_ADAPTER))
    if stored != expected:
        odd = sorted(stored ^ expected)
        raise RunError(
            f"the adapter in {directory} was made for another base model: {len(odd)} of its weights have no "
            f"counterpart, {odd[0]} first"
        )
    return adapted


def _names_in(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as tensors:
        return set(tensors.keys())


def recorded_base(directory: Path) -> str:
    """The base model that the adapter in `directory` says it was trained on."""
    config = json.loads((directory / "adapter_config.json").read_text())
    if not (base := config.get("base_model_name_or_path")):
        raise UsageError(
            f"the adapter in {directory} does not say which base it was trained on: write the base's directory or "
            "hub id as base_model_name_or_path into its adapter_config.json"
        )
    return base


def snapshot(model: Any) -> None:
    """Keeps a frozen copy of the policy's adapter as it is now, as a second adapter in the same model."""
    with _flags_kept(model), torch.random.fork_rng(devices=[]):
        model.add_adapter(SNAPSHOT_ADAPTER, deepcopy(model.peft_config[POLICY_ADAPTER]))
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, copy in weights.items():
            if f".{SNAPSHOT_ADAPTER}." in name:
                copy.requires_grad_(False).copy_(weights[name.replace(SNAPSHOT_ADAPTER, POLICY_ADAPTER)])


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """The base alone, for a moment."""
    with _flags_kept(model), model.disable_adapter():
        yield


@contextmanager
def switched_to(model: Any, name: str) -> Iterator[None]:
    """Another adapter of the same model, for a moment."""
    before = model.active_adapter
    with _flags_kept(model):
        try:
            model.set_adapter(name, inference_mode=True)
            yield
        finally:
            model.set_adapter(before)


@contextmanager
def _flags_kept(model: nn.Module) -> Iterator[None]:
    """peft's switches rewrite requires_grad of the adapters; put back what was there, whatever happens."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
