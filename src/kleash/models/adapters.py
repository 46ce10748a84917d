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
from kleash.models.checkpoint_files import check_weights
from kleash.models.heads import check_adapted
from kleash.models.spec import Adapter

#: peft's name for the adapter that is trained, and kleash's for the frozen one the run started from, and for the one
#: that a moving reference is.
POLICY_ADAPTER = "default"
SNAPSHOT_ADAPTER = "reference"
MOVING_ADAPTER = "moving"
#: Their fused kernels read out_proj's weight past any adapter, so peft refuses one there.
_MAMBA = ("mamba", "mamba2", "falcon_mamba", "falcon_h1", "nemotron_h")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def is_adapted(model: Any) -> bool:
    return isinstance(model, PeftModel)


def attach(model: Any, adapter: Adapter, base: str, seed: int, *, head: str | None = None) -> Any:
    """A fresh adapter on `model`: B = 0, so it changes nothing yet. Its A is drawn from `seed`.

    head: of a classifier, by name: it gets none.
    """
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha or adapter.rank,  # type: ignore[arg-type]  # peft says int, divides as float
        target_modules=adapter.targets,
        exclude_modules=passed_by(model, head) if adapter.targets == "all-linear" else None,
        lora_dropout=0.0,
        use_dora=adapter.dora,
        use_rslora=adapter.rslora,
        task_type="CAUSAL_LM" if head is None else None,
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            adapted = get_peft_model(model, config)
    except ValueError as error:
        raise UsageError(f"no adapter fits model.adapter.targets = {adapter.targets!r}: {error}") from None
    if head is None:
        check_adapted(adapted.get_base_model())
    adapted.peft_config[POLICY_ADAPTER].base_model_name_or_path = base
    return adapted


def passed_by(model: Any, head: str | None) -> list[str]:
    """What "all-linear" leaves alone: a classifier's head, and linear layers that peft cannot wrap."""
    names = [] if head is None else [head]
    names += ["out_proj"] if getattr(model.config, "model_type", None) in _MAMBA else []
    # a router that is a linear layer by its class and answers with more than a product (Llama 4)
    routers = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and "Router" in type(m).__name__]
    return names + routers


def load_adapter(model: Any, directory: Path) -> Any:
    """The adapter stored in `directory` on its base, to be trained further.

    Raises:
        UsageError: a kind of adapter that kleash does not train.
        RunError: its file is cut short, or it does not fit this model in shape or in the layers it names.
    """
    _refuse_other_kinds(json.loads((directory / CONFIG).read_text()), directory)
    check_weights(directory, single=WEIGHTS)
    try:
        adapted = PeftModel.from_pretrained(model, str(directory), is_trainable=True)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise RunError(f"the adapter in {directory} was made for another base model: {reason}") from None
    check_adapted(adapted.get_base_model())
    with safe_open(directory / WEIGHTS, framework="pt") as tensors:
        stored = set(tensors.keys())
    expected = set(get_peft_model_state_dict(adapted, adapter_name=POLICY_ADAPTER, save_embedding_layers=False))
    if odd := sorted(stored ^ expected):
        raise RunError(
            f"the adapter in {directory} was made for another base model: {len(odd)} weights have no counterpart, "
            f"{odd[0]} first"
        )
    return adapted


def _refuse_other_kinds(config: dict[str, Any], directory: Path) -> None:
    if config.get("peft_type") != "LORA":
        raise UsageError(
            f"the adapter in {directory} is of kind {config.get('peft_type')}; kleash trains LoRA adapters"
        )
    whole = [name for name in ("modules_to_save", "trainable_token_indices") if config.get(name)]
    whole += [] if config.get("bias", "none") == "none" else ["bias"]
    if whole:
        raise UsageError(
            f"the adapter in {directory} also replaces weights of its base ({', '.join(whole)}), so switching it off "
            "or copying it would not give what it says; merge it into its base and start from the merged model"
        )


def recorded_base(directory: Path) -> str:
    """The base model that the adapter in `directory` says it was trained on."""
    config = json.loads((directory / CONFIG).read_text())
    if not (base := config.get("base_model_name_or_path")):
        raise UsageError(
            f"the adapter in {directory} does not say which base it was trained on: write the base's directory or "
            "hub id as base_model_name_or_path into its adapter_config.json"
        )
    return base


def snapshot(model: Any, called: str = SNAPSHOT_ADAPTER, *, off: bool = False) -> None:
    """Keeps a frozen copy of the policy's adapter as it is now, as a further adapter in the same model.

    off: with B = 0, so that it changes nothing.
    """
    with _flags_kept(model), torch.random.fork_rng(devices=[]):
        model.add_adapter(called, deepcopy(model.peft_config[POLICY_ADAPTER]))
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, copy in weights.items():
            parts = name.split(".")
            if called in parts:
                source = ".".join(POLICY_ADAPTER if part == called else part for part in parts)
                copy.requires_grad_(False)
                if off and "lora_magnitude_vector" in parts:
                    continue  # peft has made it the norm of the base: DoRA that changes nothing
                copy.copy_(weights[source])
                if off and "lora_B" in parts:
                    copy.zero_()


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
