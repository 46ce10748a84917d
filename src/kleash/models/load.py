"""From a ModelSpec to a policy that is ready to train: loaded, proved, dropout off, on its device."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from kleash.errors import UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.catalog import resolve
from kleash.models.dropout import switch_off_dropout
from kleash.models.heads import probe_head, recipe_from
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.probe import probe_paths
from kleash.models.spec import Adapter, ModelSpec
from kleash.models.stopping import Ends


@dataclass(frozen=True)
class Loaded:
    """A policy and what belongs to it.

    Attributes:
        name: as the spec gave it.
        source: the directory it came from (the adapter's, if it is one).
        context: positions the model was made for; sys.maxsize for a model without a limit of its own.
        ends: every token that ends a completion, and the one that fills the room after it.
        paths: the ways through the model that this model passed at load; "plain" always.
        adapter: None (full fine-tune), "fresh", or "loaded" (trained before).
    """

    policy: Policy
    tokenizer: Any
    name: str
    source: Path
    context: int
    ends: Ends
    paths: tuple[PathName, ...]
    adapter: Literal["fresh", "loaded"] | None


def load(spec: ModelSpec, *, seed: int = 0) -> Loaded:
    """The policy of `spec`. `seed` draws a fresh adapter's A.

    Raises:
        UsageError: the spec cannot be meant (no such model, no end token, two adapters, …).
        RunError: the model is there and is not whole, or not one that kleash can run exactly.
    """
    half = spec.dtype == "bfloat16"
    directory = resolve(spec.policy, code=spec.trust_remote_code)
    frozen_base = spec.adapter is not None or is_adapter(directory)
    stored = torch.bfloat16 if half and frozen_base else torch.float32
    return _assemble(spec, directory, stored, seed)


def load_frozen(spec: ModelSpec, like: Policy) -> Loaded:
    """The model of `spec` in the precision of `like`, with nothing to train: a reference."""
    directory = resolve(spec.policy, code=spec.trust_remote_code)
    loaded = _assemble(spec, directory, like.causal.dtype, seed=0)
    loaded.policy.requires_grad_(False).eval()
    return loaded


def _assemble(spec: ModelSpec, directory: Path, stored: torch.dtype, seed: int) -> Loaded:
    trained_before = is_adapter(directory)
    base_name = adapters.recorded_base(directory) if trained_before else spec.policy
    base = resolve(base_name, code=spec.trust_remote_code) if trained_before else directory
    device = pick_device(spec.device)
    model = checkpoint_files.read_model(base, stored, spec.trust_remote_code).to(device)
    tokenizer = _tokenizer(directory, base, spec.trust_remote_code)

    vocab = min(model.get_output_embeddings().weight.shape[0], max(tokenizer.get_vocab().values()) + 1)
    recipe = recipe_from(model.config, vocab)
    switch_off_dropout(model.eval())
    probe_head(model, recipe, torch.linspace(0, vocab - 1, 16, device=device).long()[None])

    if trained_before:
        model = adapters.load_adapter(model, directory)
        _refuse_second_adapter(spec.adapter, model, directory)
    elif spec.adapter is not None:
        model = adapters.attach(model, spec.adapter, _recordable(base_name, base), seed)
    switch_off_dropout(model)  # the adapter brings its own
    if spec.gradient_checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.train()  # eval() would silently switch checkpointing off

    policy = Policy(model, recipe, compute=torch.bfloat16 if spec.dtype == "bfloat16" else None)
    return Loaded(
        policy=policy,
        tokenizer=tokenizer,
        name=spec.policy,
        source=directory,
        context=getattr(policy.config, "max_position_embeddings", None) or sys.maxsize,
        ends=_ends(policy.causal, tokenizer, spec.policy),
        paths=probe_paths(policy),
        adapter="loaded" if trained_before else None if spec.adapter is None else "fresh",
    )


def is_adapter(directory: Path) -> bool:
    """True for a peft adapter; a full model that also carries adapter files counts as the full model."""
    return (directory / "adapter_config.json").is_file() and not (directory / "config.json").is_file()


def _recordable(name: str, directory: Path) -> str:
    """How an adapter names its base: by hub id where it has one, else by where it lies."""
    return name if not name.startswith("kleash:") and not Path(name).expanduser().exists() else str(directory)


def _refuse_second_adapter(asked: Adapter | None, model: Any, directory: Path) -> None:
    """An adapter goes on as it is; the spec may say so again (a resumed run does), but not differently."""
    if asked is None:
        return
    stored = model.peft_config[adapters.POLICY_ADAPTER]
    alpha = asked.rank if asked.alpha is None else asked.alpha
    if (stored.r, stored.lora_alpha) != (asked.rank, alpha):
        raise UsageError(
            f"{directory} is an adapter of rank {stored.r} and alpha {stored.lora_alpha}, and model.adapter asks "
            f"for rank {asked.rank} and alpha {alpha:g}; leave model.adapter out to go on training this one"
        )


def pick_device(name: str) -> torch.device:
    """ "auto" → cuda, mps or cpu, the first that is there.

    Raises:
        UsageError: the device named is unknown or not on this machine.
    """
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise UsageError(f'model.device = "{name}" is not on this machine; use "auto" or "cpu"') from None
    return device


def _tokenizer(directory: Path, base: Path, trust: bool) -> Any:
    from transformers import AutoTokenizer

    home = directory if (directory / "tokenizer_config.json").is_file() else base
    try:
        return AutoTokenizer.from_pretrained(home, trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"there is no tokenizer in {home} that transformers can read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _ends(model: Any, tokenizer: Any, name: str) -> Ends:
    try:
        return Ends.of(tokenizer, getattr(model, "generation_config", None))
    except UsageError:
        raise UsageError(
            f"neither the tokenizer nor the config of {name} names an end-of-sequence token, so no completion could "
            'end: set "eos_token" in its tokenizer_config.json to the token that ends a text'
        ) from None
