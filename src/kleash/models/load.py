"""From a ModelSpec to a policy that is ready to train: loaded, proved, dropout off, on its device."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from kleash.errors import UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.anatomy import text_config
from kleash.models.catalog import resolve
from kleash.models.critic import make_critic
from kleash.models.dropout import switch_off_dropout
from kleash.models.heads import Recipe, head_of, probe_head, recipe_from
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.probe import probe_paths
from kleash.models.quantised import Quantised, recorded
from kleash.models.quantising import quantise
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
        reading: those that it passed without gradients: a recurrent state can be shared, not yet differentiated.
        adapter: None (full fine-tune), "fresh", or "loaded" (trained before).
        critic: None (the algorithm has none), "fresh", or "loaded" with the policy.
    """

    policy: Policy
    tokenizer: Any
    name: str
    source: Path
    context: int
    ends: Ends
    paths: tuple[PathName, ...]
    reading: tuple[PathName, ...]
    adapter: Literal["fresh", "loaded"] | None
    critic: Literal["fresh", "loaded"] | None = None


def load(spec: ModelSpec, *, seed: int = 0) -> Loaded:
    """The policy of `spec`. `seed` draws a fresh adapter's A.

    Raises:
        UsageError: the spec cannot be meant (no such model, no end token, two adapters, …).
        RunError: the model is there and is not whole, or not one that kleash can run exactly.
    """
    half = spec.dtype == "bfloat16"
    directory = resolve(spec.policy, code=spec.trust_remote_code)
    frozen_base = spec.adapter is not None or checkpoint_files.is_adapter(directory)
    stored = torch.bfloat16 if half and frozen_base else torch.float32
    return _assemble(spec, directory, stored, seed)


def load_frozen(spec: ModelSpec, like: Policy) -> Loaded:
    """The model of `spec` in the precision of `like`, with nothing to train: a reference."""
    directory = resolve(spec.policy, code=spec.trust_remote_code)
    loaded = _assemble(spec, directory, like.causal.dtype, seed=0)
    loaded.policy.requires_grad_(False).eval()
    return loaded


def _assemble(spec: ModelSpec, directory: Path, stored: torch.dtype, seed: int) -> Loaded:
    device = pick_device(spec.device)
    model, tokenizer, adapter, quantised = _model(spec, directory, stored, seed)
    switch_off_dropout(model)
    model.to(device)

    compute = torch.bfloat16 if spec.dtype == "bfloat16" else None
    policy = Policy(model, recipe_from(text_config(model), vocab_of(model, tokenizer)), compute=compute).eval()
    policy.quantised = quantised
    probe_head(policy.causal, policy.recipe)
    if spec.gradient_checkpointing:
        checkpoint_activations(policy)
    ways = probe_paths(policy)
    critic = None
    if spec.critic is not None:
        policy.critic, fresh = make_critic(spec.critic, policy.causal, directory)
        critic = "fresh" if fresh else "loaded"
    return Loaded(
        policy=policy,
        tokenizer=tokenizer,
        name=spec.policy,
        source=directory,
        context=context_of(policy.config),
        ends=ends_of(policy, tokenizer, spec.policy),
        paths=ways.training,
        reading=ways.reading,
        adapter=adapter,
        critic=critic,
    )


class _Read(NamedTuple):
    """The model on the CPU, and how its adapter came about."""

    model: Any
    tokenizer: Any
    adapter: Literal["fresh", "loaded"] | None
    quantised: Quantised | None


def _model(spec: ModelSpec, directory: Path, stored: torch.dtype, seed: int) -> _Read:
    code, adapted = spec.trust_remote_code, checkpoint_files.is_adapter(directory)
    refuse_nothing_to_train(spec, adapted=adapted)
    home = resolve(adapters.recorded_base(directory), code=code) if adapted else directory
    base = checkpoint_files.read_model(home, stored, code)
    tokenizer = read_tokenizer(directory, home, code)
    trained = recorded(directory) if adapted else None
    if trained is not None and spec.quantize not in (None, trained.quantize):
        raise UsageError(
            f'{directory} was trained over a base in {trained.quantize}, and model.quantize = "{spec.quantize}"; leave '
            "it out to go on over the same"
        )
    quantised, how = None, spec.quantize or (trained and trained.quantize)
    if how is not None:
        quantised = quantise(base, how, tokenizer, passed_by=adapters.passed_by(base, None))
        quantised.check(trained)
    if adapted:
        model = adapters.load_adapter(base, directory)
        _refuse_second_adapter(spec.adapter, model, directory)
        return _Read(model, tokenizer, "loaded", quantised)
    if spec.adapter is None:
        return _Read(base, tokenizer, None, None)
    model = adapters.attach(base, spec.adapter, recordable(spec.policy, directory), seed)
    return _Read(model, tokenizer, "fresh", quantised)


def refuse_nothing_to_train(spec: ModelSpec, *, adapted: bool) -> None:
    """Raises UsageError: in few bits, with no adapter. adapted: the policy is one."""
    if spec.quantize is not None and spec.adapter is None and not adapted:
        raise UsageError(
            f'model.quantize = "{spec.quantize}" freezes the weights, and without an adapter there is nothing left to '
            "train: add model.adapter = { rank = 16 }"
        )


def vocab_of(model: Any, tokenizer: Any) -> int:
    """Rows of the head that the tokenizer can produce; many models have more, for the sake of a round number."""
    rows = head_of(model.get_base_model() if adapters.is_adapted(model) else model, Recipe(0)).weight.shape[0]
    return min(rows, max(tokenizer.get_vocab().values()) + 1)


def context_of(config: Any) -> int:
    """Positions that the model was made for, by either of its names; sys.maxsize where it names none."""
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next((length for length in named if length), sys.maxsize)


def checkpoint_activations(policy: Policy) -> None:
    try:
        policy.causal.activation_checkpointing_enable({"use_reentrant": False})
    except ValueError:
        raise UsageError(
            f"{type(policy.causal).__name__} has no activation checkpointing; set model.gradient_checkpointing = false"
        ) from None
    policy.train()  # eval() would silently switch checkpointing off


def recordable(name: str, directory: Path) -> str:
    """How an adapter names its base: by hub id where it has one, else by where it lies."""
    return name if not name.startswith("kleash:") and not Path(name).expanduser().exists() else str(directory)


def _refuse_second_adapter(asked: Adapter | None, model: Any, directory: Path) -> None:
    """An adapter goes on as it is; the spec may say so again (a resumed run does), but not differently."""
    if asked is None:
        return
    stored = model.peft_config[adapters.POLICY_ADAPTER]
    alpha = float(asked.rank if asked.alpha is None else asked.alpha)
    here = (stored.r, float(stored.lora_alpha), stored.use_dora, stored.use_rslora)
    if here != (asked.rank, alpha, asked.dora, asked.rslora):
        raise UsageError(
            f"{directory} is an adapter of {_adapter_words(*here)}, and model.adapter asks for "
            f"{_adapter_words(asked.rank, alpha, asked.dora, asked.rslora)}; leave model.adapter out to go on training "
            "this one"
        )


def _adapter_words(rank: int, alpha: float, dora: bool, rslora: bool) -> str:
    kinds = [name for name, on in (("DoRA", dora), ("rsLoRA", rslora)) if on]
    return f"rank {rank} and alpha {alpha:g}{', ' if kinds else ''}{' and '.join(kinds)}"


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


def read_tokenizer(directory: Path, base: Path, trust: bool) -> Any:
    from transformers import AutoTokenizer

    home = directory if (directory / "tokenizer_config.json").is_file() else base
    try:
        return AutoTokenizer.from_pretrained(home, trust_remote_code=trust)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"there is no tokenizer in {home} that transformers can read: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def ends_of(policy: Policy, tokenizer: Any, name: str) -> Ends:
    try:
        ends = Ends.of(tokenizer, getattr(policy.causal, "generation_config", None))
    except UsageError:
        raise UsageError(
            f"neither the tokenizer nor the config of {name} names an end-of-sequence token, so no completion could "
            'end: set "eos_token" in its tokenizer_config.json to the token that ends a text'
        ) from None
    first, rows = min(ends.eos_ids), policy.recipe.vocab
    if first >= rows:
        raise UsageError(
            f"the end token {tokenizer.convert_ids_to_tokens(first)!r} of {name} is number {first} of the tokenizer, "
            f"and the model has {rows} rows in its head: no completion could end. Resize the model's embeddings and "
            "train them first, or name an end token that the model has"
        )
    return ends
