"""Which two models: from names as a person writes them to a pair that is loaded, checked and ready to be measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kleash.drift import records
from kleash.drift.parity import Compared, Template, compare_tokens
from kleash.drift.reading import Reader, Reading
from kleash.drift.shards import refuse_shards
from kleash.errors import UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.catalog import resolve
from kleash.models.exhausted import room_for
from kleash.models.fingerprint import fingerprint
from kleash.models.load import pick_device
from kleash.models.opened import BITS, Opened, Opening, open_model, with_adapter, without_adapter
from kleash.models.policy import Policy
from kleash.models.runs import Checkpoint, checkpoints, step_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a pair is opened.

    template: whose chat template writes the prompts; "each": each model reads its own.
    """

    device: str = "auto"
    template: Template = "tuned"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One side of a pair: the model, and what a report says of it."""

    opened: Opened
    record: records.Side

    @property
    def tokenizer(self) -> Any:
        return self.opened.loaded.tokenizer

    @property
    def reader(self) -> Reader:
        loaded = self.opened.loaded
        return Reader(
            tokenizer=loaded.tokenizer, ends=loaded.ends, rows=self.opened.policy.rows, context=loaded.context
        )

    @contextmanager
    def running(self) -> Iterator[Policy]:
        """The policy as this side, while the context lasts."""
        with self.opened.running() as policy:
            yield policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Base and tuned model. compared.why_not: with no tokens in common, only bits a byte can be measured."""

    base: Model
    tuned: Model
    compared: Compared

    @property
    def parity(self) -> records.Parity:
        return self.compared.parity

    @property
    def reading(self) -> Reading:
        """How texts become tokens that both can read."""
        vocabulary = self.parity.vocabulary
        return Reading(
            base=self.base.reader,
            tuned=self.tuned.reader,
            shared=self.compared.shared,
            used_template=self.parity.used_template,
            base_is_smaller=vocabulary[0] <= vocabulary[1],
        )


def open_pair(base: str, tuned: str, asked: Asked | None = None) -> Pair:
    """Loads two models and compares their tokens. An adapter whose base is BASE goes onto that very model.

    Args:
        base, tuned: a directory, a hub id, a .gguf file, kleash:tiny, kleash:smollm2, an adapter, runs/x@step-200;
            with @bfloat16, @float32, @float16 in that precision, with @4bit, @8bit rounded on loading.

    Raises:
        UsageError, RunError: a model is not there, not whole, gated, or of a kind that cannot be read, in a sentence.
    """
    asked = asked or Asked()
    device = pick_device(asked.device)
    first = _open(base, device, asked)
    directory, how = _adapter_of(tuned, device, asked)
    notes: list[str] = []
    if directory is not None and _same_base(first, directory, how, notes):
        second = with_adapter(first, tuned, directory)
        first = without_adapter(second, first)
    else:
        second = _open(tuned, device, asked)
    sides = [described(name, opened) for name, opened in ((base, first), (tuned, second))]
    compared = compare_tokens(first, second, asked.template)
    compared.parity.notes.extend(notes)
    return Pair(base=sides[0], tuned=sides[1], compared=compared)


def open_one(name: str, asked: Asked | None = None) -> Model:
    """One model by itself, named as for `open_pair`. Raises as that does."""
    asked = asked or Asked()
    return described(name, _open(name, pick_device(asked.device), asked))


def split_name(name: str) -> tuple[str, str | None]:
    """ "kleash:tiny@bfloat16" → ("kleash:tiny", "bfloat16"): what stands after @ if it is a precision or a rounding."""
    stem, _, word = name.rpartition("@")
    return (stem, word) if stem and (word in DTYPES or word in BITS) else (name, None)


def _opening(word: str | None, device: torch.device, asked: Asked) -> Opening:
    return Opening(
        dtype=DTYPES.get(word or ""),
        quantise=word if word in BITS else None,
        device=device,
        trust_remote_code=asked.trust_remote_code,
    )


def _open(name: str, device: torch.device, asked: Asked) -> Opened:
    stem, word = split_name(name)
    several = checkpoints(stem)
    if several != [Checkpoint(name=stem, step=step_of(stem))]:
        steps = ", ".join(str(one.step) for one in several)
        raise UsageError(f"{stem} is a run with checkpoints of the steps {steps}; name one, as {several[-1].name}")
    refuse_shards(Path(stem).expanduser())
    with room_for(name, "take a smaller model, a lower precision (@bfloat16), or another machine"):
        return open_model(stem, _opening(word, device, asked))


def _adapter_of(name: str, device: torch.device, asked: Asked) -> tuple[Path | None, Opening]:
    """The directory of a model that is an adapter, and how it was asked for."""
    stem, word = split_name(name)
    how = _opening(word, device, asked)
    path = Path(stem).expanduser()
    if not path.is_dir() and "@step-" not in stem:
        return None, how  # a hub id is fetched when it is opened
    if len(checkpoints(stem)) > 1 or not (path.is_dir() or "@" in stem):
        return None, how
    directory = resolve(stem)
    return (directory if checkpoint_files.is_adapter(directory) else None), how


def _same_base(base: Opened, adapter: Path, how: Opening, notes: list[str]) -> bool:
    """Whether the adapter's own base is the model that is open, in the precision that is asked for.

    An adapter goes onto BASE, with a note, where its recorded base is nowhere to be found, or is a hub id while BASE is
    a directory: who names that directory says that it is the one.
    """
    if base.adapter is not None or how.quantise is not None:
        return False
    if how.dtype is not None and how.dtype != base.policy.causal.dtype:
        return False
    recorded = adapters.recorded_base(adapter)
    if recorded == base.loaded.name:
        return True
    local = Path(recorded).expanduser()
    if local.is_dir() or recorded.startswith("kleash:") or _own(local):
        return resolve(recorded) == base.loaded.source
    if local.is_absolute() or Path(base.loaded.name).expanduser().is_dir():
        notes.append(f"the adapter names {recorded} as its base; it was put onto {base.loaded.name}")
        return True
    return resolve(recorded) == base.loaded.source


def _own(recorded: Path) -> bool:
    """Whether it is one of kleash's own models, recorded on another machine."""
    return recorded.parts[-3:] == ("kleash", "assets", "tiny") or recorded.name.startswith("smollm2-")


def described(name: str, opened: Opened) -> Model:
    """An open model with what a report says of it, its fingerprint above all."""
    policy, loaded = opened.policy, opened.loaded
    on = opened.adapter == "on"
    config = policy.model.peft_config[adapters.POLICY_ADAPTER] if on else None
    adapter = adapters.POLICY_ADAPTER if on else None
    step = step_of(split_name(name)[0])
    record = records.Side(
        name=name,
        kind="adapter" if on else "model" if opened.quantised is None else "quantised",
        dtype=str(policy.causal.dtype).removeprefix("torch."),
        fingerprint=fingerprint(policy, loaded.tokenizer, temperature=1.0, adapter=adapter),
        parameters=sum(p.numel() for n, p in policy.causal.named_parameters() if on or "lora_" not in n),
        adapter=None if config is None else f"LoRA r{config.r}",
        quantised=opened.quantised,
        step=_best_step(name) if step is None else step,
    )
    return Model(opened=opened, record=record)


def _best_step(name: str) -> int | None:
    """The step of a link such as runs/x/best."""
    path = Path(split_name(name)[0]).expanduser()
    return step_of(str(path.resolve())) if path.is_dir() else None
