"""A trained model as a plain one: its adapter merged, cast, in shards, and read back to see that it is the same."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.catalog import resolve
from kleash.models.load import read_tokenizer
from kleash.models.quiet import without_bars

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Mean KL per token between what was trained and what came out, above which it is not the same model. Rounding to bf16
#: makes about 1e-3 nats (docs/runs/export.md); a merge that went wrong makes far more.
SAME = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Between the trained model and the exported one, read back, on `tokens` tokens; nats."""

    kl: float
    largest: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model as it was trained, on the CPU in fp32. base: what its adapter was on; None without one."""

    model: Any
    tokenizer: Any
    base: str | None


def read(name: str, *, trust_remote_code: bool = False) -> Trained:
    """The model called `name`, as `model.policy` names one; an adapter on its base.

    Raises:
        UsageError, RunError: there is none, or it is not whole.
    """
    directory = resolve(name, code=trust_remote_code)
    base: str | None = None
    if checkpoint_files.is_adapter(directory):
        base = adapters.recorded_base(directory)
        home = resolve(base, code=trust_remote_code)
        model = adapters.load_adapter(checkpoint_files.read_model(home, torch.float32, trust_remote_code), directory)
    else:
        home = directory
        model = checkpoint_files.read_model(directory, torch.float32, trust_remote_code)
    return Trained(model=model.eval(), tokenizer=read_tokenizer(directory, home, trust_remote_code), base=base)


def write(trained: Trained, into: Path, dtype: str, shard: str, texts: Sequence[str]) -> Difference:
    """Merges, casts and saves into a directory that is not there yet, then reads it back and compares.

    `trained.model` is spent. texts: what both are asked for their log-probs.

    Raises:
        UsageError: the directory is there already.
        RunError: there is no room, it could not be written, or what came out is another model; nothing is left then.
    """
    if into.exists():
        raise UsageError(f"{into} is there already; choose another place for the model")
    ids = [_tokens(trained.tokenizer, text) for text in texts]
    before = [_logprobs(trained.model, row) for row in ids]
    model = trained.model.merge_and_unload() if adapters.is_adapted(trained.model) else trained.model
    model = model.to(DTYPES[dtype])
    draft = into.with_name(into.name + ".part")
    _check_room(into, sum(p.nbytes for p in model.parameters()))
    try:
        shutil.rmtree(draft, ignore_errors=True)
        with without_bars():
            model.save_pretrained(draft, max_shard_size=shard)
        trained.tokenizer.save_pretrained(draft)
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes for the owner alone, and a server may be another user
        found = _compare(draft, dtype, ids, before)
        if found.kl > SAME[dtype]:
            raise RunError(
                f"the exported model differs from the trained one by {found.kl:.2g} nats per token, more than rounding "
                f"to {dtype} can make ({SAME[dtype]:g}); nothing was kept"
            )
        draft.rename(into)
    except OSError as error:
        raise RunError(f"{into} could not be written: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def _compare(saved: Path, dtype: str, ids: list[Tensor], before: list[Tensor]) -> Difference:
    """Read back as a stranger reads it."""
    model = checkpoint_files.read_model(saved, DTYPES[dtype], False).eval()
    kls, largest = [], 0.0
    for row, old in zip(ids, before, strict=True):
        new = _logprobs(model, row)
        kls.append((old.exp() * (old - new)).sum(-1))
        taken = row[0, 1:, None]
        largest = max(largest, float((new[:-1].gather(-1, taken) - old[:-1].gather(-1, taken)).abs().max()))
    every = torch.cat(kls)
    if not math.isfinite(largest):
        raise RunError("the exported model gives log-probs that are no numbers; nothing was kept")
    return Difference(kl=float(every.mean()), largest=largest, tokens=len(every))


@torch.no_grad()
def _logprobs(model: Any, ids: Tensor) -> Float[Tensor, "T V"]:
    return model(input_ids=ids).logits[0].double().log_softmax(-1)


#: Tokens of a text that are compared.
_LENGTH = 64


def _tokens(tokenizer: Any, text: str) -> Tensor:
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, :_LENGTH]
    if ids.shape[1] < 2:
        raise UsageError("the text that the exported model is compared on has fewer than two tokens")
    return ids


def _check_room(into: Path, size: int) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(into.parent).free
    if free < 1.02 * size:
        raise RunError(f"{into.parent} has {free / 1e9:.2f} GB free, and the model takes {size / 1e9:.2f} GB")
