"""Linear layers kept in few bits: unpacked for a product, and again for the gradient of its input.

torchao rounds. What it rounded to is kept in plain buffers, so a model moves to a device, is copied and is counted as
any other. Autograd through torchao's own tensors keeps each layer's unpacked weight until the backward pass, which is
the memory that was to be saved; here nothing is kept.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.errors import RunError

#: Lies beside an adapter that was trained over a base in few bits.
RECORD = "quantised.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """What became of a base.

    Attributes:
        bits: as `model.quantize` names it. stored: the dtype that the base was read in.
        scheme: how its weights are rounded, in words.
        weights: the digest of the weights before.
        numbers: the digest of what they were rounded to.
        layers: how many are in few bits.
        left: the linear layers that do not fit, by name.
        before, after: bytes of those layers.
        cost: mean KL(base as it is stored ‖ quantised) on a fixed text, nats per token; None where it is no language
            model or cannot read that text. tokens: of the text.
    """

    bits: str
    stored: str
    scheme: str
    weights: str
    numbers: str
    layers: int
    left: tuple[str, ...]
    before: int
    after: int
    cost: float | None
    tokens: int

    def record(self, directory: Path) -> None:
        """Says beside an adapter what it was trained over."""
        said = {"quantize": self.bits, "stored": self.stored, "numbers": self.numbers}
        (directory / RECORD).write_text(json.dumps(said) + "\n")

    def check(self, trained: "Recorded | None") -> None:
        """Raises RunError: these are not the numbers that the adapter was trained over."""
        if trained is not None and self.stored == trained.stored and self.numbers != trained.numbers:
            raise RunError(
                f"the adapter was trained over a base whose weights were rounded to other numbers ({self.scheme}): the "
                "base has changed, or another version of torchao rounds otherwise; bring back what the run had"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What `Quantised.record` wrote."""

    quantize: str
    stored: str
    numbers: str


def recorded(directory: Path) -> Recorded | None:
    """What an adapter was trained over; None for a base as it is stored.

    Raises:
        RunError: the record is cut short or damaged.
    """
    path = directory / RECORD
    if not path.is_file():
        return None
    try:
        return Recorded(**json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise RunError(f"{path} is cut short or damaged; copy the adapter again, or take another checkpoint") from None


class NormalFloat(nn.Module):
    """NF4 (Dettmers et al. 2023, QLoRA, arXiv 2305.14314): 4 bits a weight, 8 bits the scale of a block.

    Args:
        codes: the number of each weight's level, two to a byte, the first in the high half.
        levels: the 16 of them.
        scales: a block's scale is scales / factors + mean, with a factor for several scales together.
    """

    codes: Tensor
    scales: Tensor
    factors: Tensor
    mean: Tensor
    levels: Tensor

    def __init__(
        self, shape: tuple[int, ...], codes: Tensor, levels: Tensor, scales: Tensor, factors: Tensor, mean: Tensor
    ) -> None:
        super().__init__()
        self.shape, self.block = shape, 2 * len(codes) // len(scales)
        both = torch.stack([levels.repeat_interleave(16), levels.repeat(16)], 1)  # of a byte: one look instead of two
        parts = {"codes": codes, "scales": scales, "factors": factors, "mean": mean, "levels": both}
        for name, value in parts.items():
            self.register_buffer(name, value.detach().clone(memory_format=torch.contiguous_format))

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        scale = (self.scales.view(len(self.factors), -1) / self.factors[:, None]).flatten() + self.mean
        found = nn.functional.embedding(self.codes.int(), self.levels.to(dtype)).view(-1, self.block)
        return found.mul_(scale.to(dtype)[:, None]).view(self.shape)


class WholeNumbers(nn.Module):
    """int8 with a scale for each 32 weights of a row.

    Args:
        weight: torchao's IntxUnpackedToInt8Tensor, made of float32, its zero points all 0.
    """

    numbers: Tensor
    scales: Tensor

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.register_buffer("numbers", weight.qdata.detach().clone())
        self.register_buffer("scales", weight.scale.detach().clone())

    def unpacked(self, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        grouped = self.numbers.view(*self.scales.shape, -1).to(dtype)
        return grouped.mul_(self.scales.to(dtype)[..., None]).view(self.shape)


#: A weight in few bits.
Packed = NormalFloat | WholeNumbers


class QuantisedLinear(nn.Linear):
    """A frozen linear layer with its weight in few bits. It is a Linear for peft, which puts adapters on those."""

    def __init__(self, layer: nn.Linear, packed: Packed) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.stored = layer.weight.dtype
        self.packed = packed
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Unpacked, in the dtype that the layer had."""
        return self.packed.unpacked(self.stored)

    def forward(self, input: Tensor) -> Tensor:
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product = _Product.apply(input.to(dtype), self.packed)
        assert isinstance(product, Tensor), "apply has no type of its own"
        return product if self.bias is None else product + self.bias.to(dtype)


class _Product(torch.autograd.Function):
    """x @ weight.T, whose backward unpacks again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return nn.functional.linear(x, packed.unpacked(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        return grad @ ctx.packed.unpacked(grad.dtype), None


def quantised_layers(model: nn.Module) -> list[QuantisedLinear]:
    return [module for module in model.modules() if isinstance(module, QuantisedLinear)]


def weights_in(model: nn.Module) -> int:
    """How many weights a model has, those in few bits included."""
    packed = sum(layer.in_features * layer.out_features for layer in quantised_layers(model))
    return packed + sum(parameter.numel() for parameter in model.parameters())


def in_full(model: nn.Module) -> dict[str, Tensor]:
    """Its state as it would be if nothing were in few bits: each such weight unpacked, in fp32, under its own name."""
    packed = {name: m.packed for name, m in model.named_modules() if isinstance(m, QuantisedLinear)}
    state = {name: t for name, t in model.state_dict().items() if name.partition(".packed.")[0] not in packed}
    return state | {f"{name}.weight": weight.unpacked(torch.float32) for name, weight in packed.items()}


def unpack(model: nn.Module) -> None:
    """Puts plain layers in fp32 in the place of those in few bits: the same numbers, which can be merged and saved."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantisedLinear):
            plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
            plain.weight = nn.Parameter(layer.packed.unpacked(torch.float32), requires_grad=False)
            plain.bias = layer.bias
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, plain)
