"""A model opened to be looked at, not trained: as it is stored, in another precision, from GGUF, quantised, adapted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.anatomy import text_config
from kleash.models.catalog import resolve
from kleash.models.dropout import switch_off_dropout
from kleash.models.exhausted import is_out_of_memory
from kleash.models.heads import probe_head, recipe_from
from kleash.models.load import Loaded, context_of, ends_of, read_tokenizer, vocab_of
from kleash.models.policy import Policy
from kleash.models.quiet import without_bars

#: How weights may be rounded on loading: bits by what a person writes.
BITS: dict[str, int] = {"4bit": 4, "8bit": 8}
#: Weights that share a scale there.
GROUP = 32
#: What quantised checkpoints are read with: the library by its `quant_method`.
LIBRARIES = {"torchao": "torchao", "bitsandbytes": "bitsandbytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a model is opened.

    dtype: None as it is stored, but half precision widened to float32 on a CPU: the same weights, less rounding, and
    faster there. quantise: a key of BITS, rounded on loading; None as it is stored.
    """

    device: torch.device
    dtype: torch.dtype | None = None
    quantise: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A model and the way it runs.

    Attributes:
        loaded: the policy, its tokenizer and the rest.
        adapter: "on" runs with the policy's adapter, "off" runs its base alone; None where there is none.
        quantised: how its weights are rounded, in words; None if they are not.
    """

    loaded: Loaded
    adapter: Literal["on", "off"] | None = None
    quantised: str | None = None

    @property
    def policy(self) -> Policy:
        return self.loaded.policy

    @contextmanager
    def running(self) -> Iterator[Policy]:
        """The policy as this model, while the context lasts."""
        if self.adapter == "off":
            with adapters.switched_off(self.policy.model):
                yield self.policy
        else:
            yield self.policy


def open_model(name: str, how: Opening) -> Opened:
    """The model called `name`: a directory, a hub id, a .gguf file, one of kleash's own, a step of a run, an adapter.

    Raises:
        UsageError: no such model, or not a causal language model.
        RunError: it is there and not whole, a package is missing, or memory ran out.
    """
    if name.endswith(".gguf"):
        return _from_gguf(name, how)
    directory = resolve(name, code=how.trust_remote_code)
    if checkpoint_files.is_adapter(directory):
        base = open_model(adapters.recorded_base(directory), how)
        return with_adapter(base, name, directory)
    stored = _quantisation(directory)
    if stored is not None and how.quantise is not None:
        raise UsageError(f"{name} is quantised already ({stored}); leave out @{how.quantise}")
    dtype = how.dtype or _computed(stored_dtype(directory), how.device)
    model = _read(directory, dtype, how, stored)
    asked = None if how.quantise is None else f"torchao int{BITS[how.quantise]}, groups of {GROUP}, on loading"
    tokenizer = read_tokenizer(directory, directory, how.trust_remote_code)
    return Opened(loaded=_assembled(model, tokenizer, name, directory, how), quantised=stored or asked)


def with_adapter(base: Opened, name: str, directory: Path) -> Opened:
    """The adapter in `directory` on the model of `base`, which from here on is `without_adapter` of the result.

    Raises:
        RunError: it was made for another base model.
        UsageError: it is not a LoRA adapter that can be switched.
    """
    policy = base.policy
    model = adapters.load_adapter(policy.causal, directory)
    adapted = Policy(model.to(policy.device), policy.recipe).requires_grad_(False).eval()
    tokenizer = read_tokenizer(directory, base.loaded.source, trust=False)
    loaded = replace(base.loaded, policy=adapted, tokenizer=tokenizer, name=name, source=directory, adapter="loaded")
    return Opened(loaded=loaded, adapter="on", quantised=base.quantised)


def without_adapter(tuned: Opened, base: Opened) -> Opened:
    """`base` again, after its model has taken an adapter: the same weights, the adapter switched off."""
    return replace(base, loaded=replace(base.loaded, policy=tuned.policy), adapter="off")


def stored_dtype(directory: Path) -> torch.dtype:
    """The precision that a checkpoint says it is in; float32 where it says nothing."""
    config = json.loads((directory / "config.json").read_text()) if (directory / "config.json").is_file() else {}
    said = config.get("dtype") or config.get("torch_dtype") or "float32"
    dtype = getattr(torch, said, None) if isinstance(said, str) else None
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _computed(stored: torch.dtype, device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" and stored.itemsize == 2 else stored


def _assembled(model: Any, tokenizer: Any, name: str, source: Path, how: Opening) -> Loaded:
    switch_off_dropout(model)
    if getattr(model, "quantization_method", None) is None:
        model.to(how.device)
    policy = Policy(model, recipe_from(text_config(model), vocab_of(model, tokenizer)))
    policy.requires_grad_(False).eval()
    probe_head(policy.causal, policy.recipe)
    return Loaded(
        policy=policy,
        tokenizer=tokenizer,
        name=name,
        source=source,
        context=context_of(policy.config),
        ends=ends_of(policy, tokenizer, name),
        paths=("plain",),
        reading=("plain",),
        adapter=None,
    )


def _read(directory: Path, dtype: torch.dtype, how: Opening, stored: str | None) -> Any:
    if stored is None and how.quantise is None:
        return checkpoint_files.read_model(directory, dtype, how.trust_remote_code)
    checkpoint_files.check_weights(directory)
    from transformers import AutoModelForCausalLM

    given = {} if how.quantise is None else {"quantization_config": _torchao(how.quantise)}
    # Their own loaders move weights to a device themselves.
    with _said_plainly(f"the quantised model in {directory}"), without_bars():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            device_map=str(how.device),
            trust_remote_code=how.trust_remote_code,
            output_loading_info=True,
            **given,
        )
    model, info = loaded
    if absent := sorted(info["missing_keys"]):
        raise RunError(f"the checkpoint in {directory} lacks {len(absent)} of the model's weights ({absent[0]} first)")
    return model


def _torchao(quantise: str) -> Any:
    try:
        from torchao.quantization import IntxWeightOnlyConfig  # pyright: ignore[reportMissingImports]
        from torchao.quantization.granularity import PerGroup  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise RunError(f'rounding a model with @{quantise} takes torchao: pip install "kleash[quantised]"') from None
    from transformers import TorchAoConfig

    bits = getattr(torch, f"int{BITS[quantise]}")  # torch.int4 has no stub
    return TorchAoConfig(IntxWeightOnlyConfig(weight_dtype=bits, granularity=PerGroup(GROUP)))


def _quantisation(directory: Path) -> str | None:
    """How a checkpoint's weights are rounded, as its config says; None if they are not.

    Raises:
        RunError: the package that reads it is not installed.
    """
    path = directory / "config.json"
    if not path.is_file():
        return None  # said when it is read
    stored = json.loads(path.read_text()).get("quantization_config")
    if not stored:
        return None
    method = stored.get("quant_method", "unknown")
    if (package := LIBRARIES.get(method)) is not None:
        try:
            __import__(package)
        except ImportError:
            raise RunError(f"the model in {directory} is quantised with {package}: pip install {package}") from None
    kind = "4-bit" if stored.get("load_in_4bit") else "8-bit" if stored.get("load_in_8bit") else ""
    return f"{method} {kind}".strip()


def _from_gguf(name: str, how: Opening) -> Opened:
    """A GGUF file, its weights unpacked to whole numbers of `how.dtype` (float32 unless said)."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise UsageError(f"there is no file {name}")
    if how.quantise is not None:
        raise UsageError(f"{name} is a GGUF file, with a rounding of its own; leave out @{how.quantise}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = str(path.parent)
    with _said_plainly(f"the GGUF file {name}"), without_bars():
        model: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=path.name, dtype=how.dtype or torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=path.name)
    model.quantization_method = None  # unpacked: an ordinary model from here on
    return Opened(loaded=_assembled(model, tokenizer, name, path.resolve(), how), quantised=f"GGUF {_gguf_type(path)}")


def _gguf_type(path: Path) -> str:
    """The name of the file's most common kind of block, as "Q4_K"."""
    from gguf import GGUFReader

    sizes: dict[str, int] = {}
    for tensor in GGUFReader(str(path)).tensors:
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_elements)
    return max(sizes, key=lambda kind: sizes[kind])


@contextmanager
def _said_plainly(what: str) -> Iterator[None]:
    """Whatever a library raises on reading, as one sentence."""
    try:
        yield
    except Exception as error:  # of as many kinds as there are libraries below
        if is_out_of_memory(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{what} could not be loaded: {reason}") from None
