"""Tiles of logits: how `fused` walks the [tokens × vocabulary] plane without ever making it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kleash.tensors import Head


def _even(total: int, most: int) -> int:
    """The size of a piece when `total` is cut into the fewest pieces of at most `most`, as equal as can be."""
    return math.ceil(total / math.ceil(total / most)) if total else 1


@dataclass(frozen=True, slots=True)
class Grid:
    """A plane of `tokens` × `vocab`, cut into tiles of at most `elements`.

    Tiles are as square as the plane allows, so that a matrix product reads its operands the fewest times, and of one
    size but for the last, since a sliver is slow.
    """

    tokens: int
    vocab: int
    elements: int

    @property
    def tile(self) -> tuple[int, int]:
        rows = _even(self.tokens, math.isqrt(self.elements))
        return rows, _even(self.vocab, self.elements // rows)

    def rows(self) -> Iterator[slice]:
        step = self.tile[0]
        return (slice(a, min(a + step, self.tokens)) for a in range(0, self.tokens, step))

    def cols(self) -> Iterator[slice]:
        step = self.tile[1]
        return (slice(a, min(a + step, self.vocab)) for a in range(0, self.vocab, step))

    def buffers(self, count: int, like: Tensor, dtype: torch.dtype) -> list[Tensor]:
        rows, cols = self.tile
        return [like.new_empty(rows * cols, dtype=dtype) for _ in range(count)]


def view(buffer: Tensor, rows: slice, cols: slice) -> Tensor:
    """The tile rows × cols as a contiguous piece of `buffer`: the last row and column of tiles are smaller.

    Source: the definition.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    m, v = rows.stop - rows.start, cols.stop - cols.start
    return buffer[: m * v].view(m, v)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head's products become logits, and the dtype its operands are multiplied in."""

    operand: torch.dtype
    scale: float
    softcap: float | None
    temperature: float

    @staticmethod
    def of(head: Head, hidden: Tensor, temperature: float, dtype: torch.dtype) -> "Recipe":
        """Operands are widened to `dtype`, but for low precision on CUDA: multiplied as it is, results still float32.

        Under CUDA autocast the operands take its dtype, as they do in a linear layer. CPU kernels have no low-precision
        product with float32 results, so a CPU widens: as accurate, and faster than bfloat16 without AMX.
        """
        operand = dtype
        if hidden.device.type == "cuda" and dtype == torch.float32:
            if torch.is_autocast_enabled("cuda"):
                operand = torch.get_autocast_dtype("cuda")
            elif hidden.dtype == head.weight.dtype:
                operand = hidden.dtype
        return Recipe(operand, head.scale, head.softcap, temperature)

    @property
    def slope(self) -> float:
        """d logits / d (h Wᵀ + b), but for the soft-cap's own factor 1 − tanh²."""
        return self.scale / self.temperature


@dataclass(frozen=True, slots=True)
class Side:
    """One model's half: hidden states [tokens, H] in the operand dtype and the head they meet."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    recipe: Recipe

    @staticmethod
    def of(hidden: Tensor, weight: Tensor, bias: Tensor | None, recipe: Recipe) -> "Side":
        return Side(hidden.to(recipe.operand), weight, bias, recipe)

    def head(self, cols: slice) -> Tensor:
        return aligned(self.weight[cols].to(self.hidden.dtype))

    def logits(self, rows: slice, cols: slice, buffer: Tensor) -> Tensor:
        return self.fill(self.head(cols), rows, cols, view(buffer, rows, cols))

    def fill(self, head: Tensor, rows: slice, cols: slice, out: Tensor) -> Tensor:
        """The tile rows × cols into `out`, whose rows may lie apart; `head` is `self.head(cols)`."""
        multiply(aligned(self.hidden[rows]), head.T, out)
        if self.bias is not None:
            out.add_(self.bias[cols])
        cap = self.recipe.softcap
        if cap is not None:
            return out.mul_(self.recipe.scale / cap).tanh_().mul_(cap / self.recipe.temperature)
        return out if self.recipe.slope == 1 else out.mul_(self.recipe.slope)

    def cap_slope(self, logits: Tensor) -> Tensor | None:
        """1 − tanh² of a soft-capped tile, recovered from its logits; None without a soft-cap."""
        if self.recipe.softcap is None:
            return None
        return (logits * (self.recipe.temperature / self.recipe.softcap)).square_().neg_().add_(1)


def aligned(x: Tensor) -> Tensor:
    """x at a cache line's start: BLAS rounds differently at other addresses, and equal sides must give equal logits.

    Source: measured here.
    Proved by: tests/kl/test_fused_limits.py::test_policy_equal_to_reference_is_exactly_zero
    """
    return x.contiguous() if x.data_ptr() % 64 == 0 else x.clone(memory_format=torch.contiguous_format)


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = a b, accumulated in out's dtype whatever the operands'.

    Source: the definition.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)


def accumulate(a: Tensor, b: Tensor, into: Tensor) -> None:
    """into += a b, accumulated in into's dtype; `a` is rounded to b's dtype, as autograd would.

    Source: the definition.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    if b.dtype == into.dtype:
        into.addmm_(a, b)
    else:
        into.add_(torch.mm(a.to(b.dtype), b, out_dtype=into.dtype))
