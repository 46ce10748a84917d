"""A trained model as a plain one: its adapter merged, cast, in shards, and read back to see that it is the same."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from kleash.errors import RunError, UsageError
from kleash.models import adapters, checkpoint_files
from kleash.models.catalog import resolve
from kleash.models.load import read_tokenizer
from kleash.models.quantised import recorded
from kleash.models.quantising import read_rounded
from kleash.models.quiet import without_bars

#: The base that an adapter is merged into, where it was trained over a quantised one: that one, or what it was made of.
Onto = Literal["trained", "stored"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Mean KL per token between what was trained and what came out, above which it is not the same model. Rounding to bf16
#: makes about 1e-3 nats (docs/runs/export.md); a merge that went wrong makes far more.
SAME = {"float32": 1e-6, "bfloat16": 2e-2, "float16": 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Between the trained model and the exported one, read back, on `tokens` tokens; nats per token.

    kl: mean exact KL(p‖exported), p being the model that was merged and cast. largest: |Δ log-prob| of a text's token.
    moved: mean KL(as trained‖exported) where the adapter was merged into a base that it was not trained over.
    """

    kl: float
    largest: float
    tokens: int
    moved: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A model to export, on the CPU in fp32.

    base: what its adapter was on; None without one. over: how that base was rounded in training; None if it was not.
    trained: the model as it was trained, where `model` is its adapter on the base as it is stored.
    """

    model: Any
    tokenizer: Any
    base: str | None
    over: str | None = None
    trained: Any = None


def read(name: str, *, onto: Onto = "trained", trust_remote_code: bool = False) -> Trained:
    """The model called `name`, as `model.policy` names one; an adapter on its base.

    onto: of an adapter trained over a quantised base, "trained" is that base, "stored" the one it was made from.

    Raises:
        UsageError: there is none, or "stored" is asked for where it is what was trained over.
        RunError: it is not whole.
    """
    directory = resolve(name, code=trust_remote_code)
    adapted = checkpoint_files.is_adapter(directory)
    over = recorded(directory) if adapted else None
    if onto == "stored" and over is None:
        raise UsageError(f"--onto stored is for an adapter that was trained over a quantised base, and {name} is none")
    if not adapted:
        model = checkpoint_files.read_model(directory, torch.float32, trust_remote_code)
        return Trained(model=model.eval(), tokenizer=read_tokenizer(directory, directory, trust_remote_code), base=None)
    base = adapters.recorded_base(directory)
    home = resolve(base, code=trust_remote_code)
    tokenizer = read_tokenizer(directory, home, trust_remote_code)
    trained = scheme = None
    if over is not None:
        rounded, scheme = read_rounded(home, over, tokenizer, trust_remote_code)
        trained = adapters.load_adapter(rounded.float(), directory).eval()
    if trained is not None and onto == "trained":
        return Trained(model=trained, tokenizer=tokenizer, base=base, over=scheme)
    whole = checkpoint_files.read_model(home, torch.float32, trust_remote_code)
    model = adapters.load_adapter(whole, directory).eval()
    return Trained(model=model, tokenizer=tokenizer, base=base, over=scheme, trained=trained)


def write(
    trained: Trained, into: Path, dtype: str, shard: str, texts: Sequence[str], card: Callable[[Difference], str]
) -> Difference:
    """Merges, casts and saves into a directory that is not there yet, then reads it back and compares.

    `trained.model` is spent. texts: what both are asked for their log-probs. card: the text of README.md.

    Raises:
        UsageError: the directory is there already.
        RunError: there is no room, it could not be written, or what came out is another model; nothing is left then.
    """
    if into.exists():
        raise UsageError(f"{into} is there already; choose another place for the model")
    ids = [_tokens(trained.tokenizer, text) for text in texts]
    before = [_logprobs(trained.model, row) for row in ids]
    as_trained = None if trained.trained is None else [_logprobs(trained.trained, row) for row in ids]
    model = trained.model.merge_and_unload() if adapters.is_adapted(trained.model) else trained.model
    model = model.to(DTYPES[dtype])
    draft = into.with_name(into.name + ".part")
    _check_room(into, sum(p.nbytes for p in model.parameters()))
    try:
        shutil.rmtree(draft, ignore_errors=True)
        with without_bars():
            model.save_pretrained(draft, max_shard_size=shard)
        trained.tokenizer.save_pretrained(draft)
        found = _compare(draft, dtype, ids, before, as_trained)
        if found.kl > SAME[dtype]:
            raise RunError(
                f"the exported model differs from the trained one by {found.kl:.2g} nats per token, more than rounding "
                f"to {dtype} can make ({SAME[dtype]:g}); nothing was kept"
            )
        (draft / "README.md").write_text(card(found))
        for file in draft.iterdir():
            file.chmod(0o644)  # safetensors writes for the owner alone, and a server may be another user
        draft.rename(into)
    except (OSError, SafetensorError) as error:  # safetensors has its own for a full disk
        said = getattr(error, "strerror", None) or error
        raise RunError(f"{into} could not be written: {said}; nothing was kept") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return found


def _compare(
    saved: Path, dtype: str, ids: list[Tensor], before: list[Tensor], as_trained: list[Tensor] | None
) -> Difference:
    """Read back as a stranger reads it."""
    model = checkpoint_files.read_model(saved, DTYPES[dtype], False).eval()
    after = [_logprobs(model, row) for row in ids]
    largest = 0.0
    for row, old, new in zip(ids, before, after, strict=True):
        taken = row[0, 1:, None]
        largest = max(largest, float((new[:-1].gather(-1, taken) - old[:-1].gather(-1, taken)).abs().max()))
    if not math.isfinite(largest):
        raise RunError("the exported model gives log-probs that are no numbers; nothing was kept")
    return Difference(
        kl=_kl(before, after),
        largest=largest,
        tokens=sum(len(row) for row in after),
        moved=None if as_trained is None else _kl(as_trained, after),
    )


def _kl(p: list[Tensor], q: list[Tensor]) -> float:
    """Mean exact KL(p‖q) over all positions, nats per token, of log-probs, a tensor of positions × V for each text."""
    return float(torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in zip(p, q, strict=True)]).mean())


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
