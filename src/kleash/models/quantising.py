"""A model that has just been read, its linear layers put into few bits, and what that makes of its words."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.errors import RunError, UsageError
from kleash.models import adapters
from kleash.models.checkpoint_files import read_model
from kleash.models.fingerprint import model_digest, tensors_digest
from kleash.models.quantised import NormalFloat, Packed, Quantised, QuantisedLinear, Recorded, WholeNumbers, unpack

#: Weights that share a scale.
BLOCK = {"4bit": 64, "8bit": 32}
SCHEMES = {
    "4bit": f"torchao NF4, blocks of {BLOCK['4bit']}, double quantised",
    "8bit": f"torchao int8, groups of {BLOCK['8bit']}",
}
#: NF4's scales are rounded in turn, so many of them together at most.
_SCALES = 256
#: A rounded matrix that is further from its own than this share of it is not a rounded one: an odd matrix for torchao.
_FAR = 0.5
#: What a base and its rounded self are compared on.
TEXT = (
    "The last ferry leaves the island at nine, and in winter it often does not leave at all. People who live there "
    "keep a boat, a radio and enough flour for two weeks. In return they have the light: on clear mornings the whole "
    "coast lies open, and one can count the houses on the other side. My sister moved there to repair clocks, which "
    "nobody on the island needs, and now teaches mathematics to eleven children instead."
)

Packing = Callable[[Float[Tensor, "out in"]], Packed]


def quantise(model: Any, how: str, tokenizer: Any, *, passed_by: list[str]) -> Quantised:
    """Puts the linear layers of `model` into few bits, in place. Nothing of it can be trained afterwards.

    Args:
        how: a key of SCHEMES.
        passed_by: names of layers, or their last parts, that stay as they are.

    Raises:
        UsageError: it is in few bits already, or none of its layers can be.
        RunError: torchao is not there, or cannot round this model.
    """
    packing, fits = _packing(how)
    if getattr(model.config, "quantization_config", None):
        raise UsageError(f'model.quantize = "{how}": this checkpoint is quantised already; name the one it was made of')
    digest = model_digest(model)
    before, tokens = _words(model, tokenizer)
    head = model.get_output_embeddings()
    layers, left, sizes = 0, [], [0, 0]
    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear or layer is head or _named(name, passed_by):
            continue  # a class of its own (a router's) may read its weight in its own way
        packed = packing(layer.weight.detach().float().contiguous()) if fits(layer.weight) else None
        if packed is None or not _near(packed, layer.weight):
            left.append(name)
            continue
        sizes[0] += layer.weight.nbytes
        sizes[1] += sum(buffer.nbytes for buffer in packed.buffers())
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, QuantisedLinear(layer, packed))
        layers += 1
    if layers == 0:
        raise UsageError(
            f'model.quantize = "{how}": none of the linear layers of {type(model).__name__} can be quantised ('
            f"{'the first, ' + left[0] + ', does not fit blocks of ' + str(BLOCK[how]) if left else 'it has none'}); "
            "leave it out"
        )
    after, _ = _words(model, tokenizer)
    return Quantised(
        bits=how,
        stored=str(head.weight.dtype if head is not None else model.dtype).removeprefix("torch."),
        scheme=SCHEMES[how],
        weights=digest,
        numbers=tensors_digest(_numbers(model)),
        layers=layers,
        left=tuple(left),
        before=sizes[0],
        after=sizes[1],
        cost=None if before is None or after is None else float((before.exp() * (before - after)).sum(-1).mean()),
        tokens=tokens,
    )


def read_rounded(directory: Path, over: Recorded, tokenizer: Any, trust_remote_code: bool) -> tuple[Any, str]:
    """The base in `directory` with the very numbers that an adapter was trained over, in plain layers; their scheme.

    Raises:
        UsageError, RunError: as `read_model` and `quantise`; RunError also where the numbers have become others.
    """
    base = read_model(directory, getattr(torch, over.stored), trust_remote_code)
    found = quantise(base, over.quantize, tokenizer, passed_by=adapters.passed_by(base, None))
    found.check(over)
    unpack(base)
    return base, found.scheme


def _packing(how: str) -> tuple[Packing, Callable[[Tensor], bool]]:
    """How a weight is rounded, and whether one fits."""
    try:
        with _quietly():
            from torchao.quantization import (  # pyright: ignore[reportMissingImports]
                IntxUnpackedToInt8Tensor,
                NF4Tensor,
            )
    except ImportError:
        raise RunError(f'model.quantize = "{how}" takes torchao: pip install "kleash[quantised]"') from None
    size = BLOCK[how]

    def normal(weight: Tensor) -> Packed:
        together = gcd(_SCALES, weight.numel() // size)
        scales, factors, mean = NF4Tensor.double_quantize_scalers(weight.flatten(), size, together)
        levels = NF4Tensor.from_tensor(torch.ones(size), size, 1).nf4
        # Its own search for the nearest level holds each weight against all 16, and finds none in a block of zeros.
        blocks = weight.view(-1, size)
        largest = blocks.abs().amax(1, keepdim=True)
        near = torch.bucketize(blocks / torch.where(largest > 0, largest, 1), (levels[1:] + levels[:-1]) / 2)
        codes = near.to(torch.uint8).flatten()
        return NormalFloat(tuple(weight.shape), codes[::2] << 4 | codes[1::2], levels, scales, factors, mean)

    def whole(weight: Tensor) -> Packed:
        group: Any = (1, size)  # torchao's hint has room for one number
        return WholeNumbers(IntxUnpackedToInt8Tensor.from_hp(weight, group, torch.int8))

    if how == "4bit":
        return normal, lambda weight: weight.numel() % size == 0
    return whole, lambda weight: weight.shape[1] % size == 0


def _near(packed: Packed, weight: Tensor) -> bool:
    off, full = packed.unpacked(torch.float32) - weight, weight.float()
    return bool(off.norm() <= _FAR * full.norm())  # False for what is no number


def _named(name: str, parts: list[str]) -> bool:
    return any(name == part or name.endswith(f".{part}") for part in parts)


def _numbers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, module in model.named_modules():
        if isinstance(module, QuantisedLinear):
            for part, buffer in module.packed.named_buffers():
                yield f"{name}.{part}", buffer


@torch.no_grad()
def _words(model: Any, tokenizer: Any) -> tuple[Float[Tensor, "T V"] | None, int]:
    """Log-probs of every next token of the text, and how many; None of a model that gives none."""
    rows = model.get_input_embeddings().weight.shape[0]
    ids = [i for i in tokenizer(TEXT, add_special_tokens=False)["input_ids"] if i < rows]
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or len(ids)
    ids = ids[:longest]
    if model.get_output_embeddings() is None or len(set(ids)) < 2:
        return None, 0
    return model(input_ids=torch.tensor([ids], device=model.device)).logits[0].double().log_softmax(-1), len(ids)


@contextmanager
def _quietly() -> Iterator[None]:
    """torchao says on import which kernels it has not; none of them is used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
