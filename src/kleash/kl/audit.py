"""All that an audit asks of two distributions over the vocabulary, a token at a time, in one pass over the head(s).

Unlike `fused`, which trains, this only measures: no gradient, both directions, Jensen–Shannon, ranks and flips. Whole
rows of logits are there for a few tokens at a time (`chunk_bytes` each side), never for all of them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl import divergences
from kleash.kl.tiles import Recipe, Side, view
from kleash.tensors import Head

#: Bytes of one side's rows of logits. A product of few rows reads the whole head for little.
CPU_CHUNK_BYTES = 64 << 20
DEVICE_CHUNK_BYTES = 256 << 20
#: Of these rows so many bytes are worked on at a time: on a CPU five such pieces should share the last-level cache.
CPU_PIECE_BYTES = 4 << 20
#: Columns of a head in lower precision that are widened at a time.
WIDENED_COLUMNS = 8192


@dataclass(frozen=True, slots=True)
class Audited:
    """Per token, on the CPU, in float64 and nats; p is the base over the shared vocabulary, q the tuned model.

    forward: KL(p ‖ q). reverse: KL(q ‖ p). jensen_shannon. All three are inf or NaN where they are that. logp_base,
    logp_tuned: of the target. same_top1: one likeliest token. flip_radius: the least forward KL that can make another
    token than the base's likeliest the likeliest. rank: of the target under q, 1 for the likeliest. entropy_base,
    entropy_tuned. confidence: the largest p. new_mass: of the tuned model's whole distribution, before it is cut to
    the shared vocabulary; lost_mass: likewise the base's. A row whose logits hold a NaN or a +inf is NaN throughout
    (False and 0 where there is no NaN).
    """

    forward: Float[Tensor, " n"]
    reverse: Float[Tensor, " n"]
    jensen_shannon: Float[Tensor, " n"]
    logp_base: Float[Tensor, " n"]
    logp_tuned: Float[Tensor, " n"]
    same_top1: Bool[Tensor, " n"]
    flip_radius: Float[Tensor, " n"]
    rank: Int[Tensor, " n"]
    entropy_base: Float[Tensor, " n"]
    entropy_tuned: Float[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    new_mass: Float[Tensor, " n"]
    lost_mass: Float[Tensor, " n"]


@torch.no_grad()
def audit(
    base_hidden: Float[Tensor, "n H"],
    base_head: Head,
    tuned_hidden: Float[Tensor, "n K"],
    tuned_head: Head,
    targets: Int[Tensor, " n"],
    *,
    chunk_bytes: int | None = None,
) -> Audited:
    """Compares the two next-token distributions at each of n positions.

    The vocabulary that both have is the first min(vocab, vocab) rows; each side is renormalised over it, and what that
    leaves out is `new_mass` and `lost_mass`. Computed in float32 (float64 if an input is), but for what
    is one number a token. Equal sides give exactly 0.

    Raises:
        UsageError: a target is not in the shared vocabulary.

    Source: the definitions; Lin 1991 for Jensen–Shannon; the flip radius is the I-projection onto p(b) ≥ p(a).
    Proved by: tests/kl/test_audit.py::test_equals_float64_from_full_logits
    """
    shared = min(base_head.vocab, tuned_head.vocab)
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < shared:
        raise UsageError(f"a scored token is not among the {shared} that both models have")
    wide = any(x.dtype == torch.float64 for x in (base_hidden, base_head.weight, tuned_hidden, tuned_head.weight))
    dtype = torch.float64 if wide else torch.float32
    pair = ((base_hidden, base_head), (tuned_hidden, tuned_head))
    with torch.autocast(base_hidden.device.type, enabled=False):
        recipes = [Recipe.of(w, h, 1.0, dtype) for h, w in pair]
        sides = [Side.of(h, w.weight, w.bias, r) for (h, w), r in zip(pair, recipes, strict=True)]
        planes = _Planes.of(sides, (base_head.vocab, tuned_head.vocab), dtype, chunk_bytes)
        found = [piece for rows in planes.cuts(len(targets)) for piece in _rows(planes, rows, targets[rows], shared)]
    if not found:
        none = base_hidden.new_empty(0)
        found = [[*[none] * 5, none.bool(), none, none.long(), *[none] * 5]]
    columns = [torch.cat(column).cpu() for column in zip(*found, strict=True)]
    return Audited(*(c.double() if c.is_floating_point() else c for c in columns))


@dataclass(frozen=True, slots=True)
class _Planes:
    """Room for whole rows of both sides' logits, how it is filled, and room to work on a piece of them."""

    sides: list[Side]
    vocabs: tuple[int, int]
    buffers: list[Tensor]
    scratch: list[Tensor]
    columns: int

    @staticmethod
    def of(sides: list[Side], vocabs: tuple[int, int], dtype: torch.dtype, chunk_bytes: int | None) -> "_Planes":
        widest, like = max(vocabs), sides[0].hidden
        cpu = like.device.type == "cpu"
        whole = chunk_bytes or (CPU_CHUNK_BYTES if cpu else DEVICE_CHUNK_BYTES)
        row = dtype.itemsize * widest
        height = min(max(1, whole // row), max(1, len(like)))
        piece = min(max(1, CPU_PIECE_BYTES // row), height) if cpu else height
        widened = any(side.weight.dtype != side.hidden.dtype for side in sides)
        return _Planes(
            sides,
            vocabs,
            [like.new_empty(height * widest, dtype=dtype) for _ in range(2)],
            [like.new_empty(piece * widest, dtype=dtype) for _ in range(3)],
            WIDENED_COLUMNS if widened else widest,
        )

    def cuts(self, n: int) -> list[slice]:
        return _cuts(n, len(self.buffers[0]) // max(self.vocabs))

    def pieces(self, n: int) -> list[slice]:
        return _cuts(n, len(self.scratch[0]) // max(self.vocabs))

    def logits(self, rows: slice) -> list[Tensor]:
        """Both sides' logits of these rows, each over its own vocabulary."""
        whole = [slice(0, vocab) for vocab in self.vocabs]
        out = [view(buffer, rows, cols) for buffer, cols in zip(self.buffers[:2], whole, strict=True)]
        for a in range(0, max(self.vocabs), self.columns):
            last: tuple[Tensor, slice, Tensor] | None = None
            for side, plane, vocab in zip(self.sides, out, self.vocabs, strict=True):
                cols = slice(a, min(a + self.columns, vocab))
                if cols.start >= cols.stop:
                    continue
                same = last is not None and last[0] is side.weight and last[1] == cols
                # not side.head(cols): that copies a head which does not begin at a cache line
                head = last[2] if last is not None and same else side.weight[cols].to(side.hidden.dtype)
                side.fill(head, rows, cols, plane[:, cols])
                last = (side.weight, cols, head)
        return out


def _cuts(n: int, most: int) -> list[slice]:
    return [slice(a, min(a + most, n)) for a in range(0, n, most)]


class _Soft(NamedTuple):
    """One side's rows: logits less the largest, e = exp of them, Σ e, and the largest's place."""

    z: Tensor
    e: Tensor
    mass: Tensor
    place: Tensor

    @staticmethod
    def of(logits: Tensor, buffer: Tensor) -> "_Soft":
        top, place = logits.max(-1, keepdim=True)
        z = logits.sub_(top)
        e = torch.exp(z, out=buffer)
        return _Soft(z, e, _sum(e), place)

    def entropy(self, scratch: Tensor) -> Tensor:
        return self.mass.log() - _sum(torch.mul(self.e, self.z, out=scratch)) / self.mass

    def logp(self, targets: Tensor) -> Tensor:
        return _state(self.z.gather(-1, targets[:, None])[:, 0]) - self.mass.log()


def _sum(x: Tensor) -> Tensor:
    """Summed as it is: asked for float64, torch would first copy the whole tile."""
    return _state(x.sum(-1))


def _state(x: Tensor) -> Tensor:
    """A number a token, in float64 where the device has it."""
    return x if x.device.type == "mps" else x.double()


def _rows(planes: _Planes, rows: slice, targets: Tensor, shared: int) -> list[list[Tensor]]:
    """The columns of `Audited` for the tokens of a chunk, in pieces."""
    z, y = planes.logits(rows)
    found = []
    for piece in planes.pieces(len(targets)):
        room = [view(buffer, piece, slice(0, shared)) for buffer in planes.scratch]
        found.append(_piece(z[piece], y[piece], targets[piece], room))
    odd = torch.cat([~torch.stack(columns[:5]).isfinite().all(0) for columns in found])
    if bool(odd.any()):
        z, y = (logits[:, :shared][odd].cpu().double() for logits in planes.logits(rows))
        found = [[torch.cat(column) for column in zip(*found, strict=True)]]
        for column, values in zip(found[0], _with_infinities(z, y, targets[odd].cpu()), strict=False):
            column[odd] = values.to(column)
    return found


def _piece(z: Tensor, y: Tensor, targets: Tensor, room: list[Tensor]) -> list[Tensor]:
    e, f, scratch = room
    shared = e.shape[1]
    lost, new = _beyond(z, shared), _beyond(y, shared)
    base, tuned = _Soft.of(z[:, :shared], e), _Soft.of(y[:, :shared], f)
    logps = [side.logp(targets) for side in (base, tuned)]
    # counted in floats that are there: a tile of new integers each time leaves holes that the heap cannot fill again
    above = torch.gt(tuned.z, tuned.z.gather(-1, targets[:, None]), out=scratch)
    rank = 1 + above.sum(-1).long()
    entropies = [side.entropy(scratch) for side in (base, tuned)]
    radius = _flip_radius(base)
    divergent = _divergences(base, tuned, scratch)
    same = (base.place == tuned.place)[:, 0]
    return [*divergent, *logps, same, radius, rank, *entropies, 1 / base.mass, new, lost]


def _beyond(logits: Tensor, shared: int) -> Tensor:
    """The probability of what lies beyond the shared vocabulary."""
    if logits.shape[1] == shared:
        return _state(logits.new_zeros(len(logits)))
    inside, outside = logits[:, :shared].logsumexp(-1), logits[:, shared:].logsumexp(-1)
    return torch.sigmoid(_state(outside) - _state(inside))


def _flip_radius(base: _Soft) -> Tensor:
    """min KL(p ‖ q) over the q whose likeliest token is another: both top tokens at their mean."""
    base.e.scatter_(-1, base.place, 0)
    first, second = 1 / base.mass, _state(base.e.amax(-1)) / base.mass
    base.e.scatter_(-1, base.place, 1)
    mean = (first + second) / 2
    return torch.xlogy(first, first / mean) + torch.xlogy(second, second / mean)


def _divergences(base: _Soft, tuned: _Soft, scratch: Tensor) -> list[Tensor]:
    """Forward and reverse KL, Jensen–Shannon. Consumes both sides' tiles.

    With a = |log p − log q| and r = |p − q| / (p + q), each token's share of 2 JS is (p + q) log(1 + r) − min(p, q) a:
    no logarithm of a vanishing number, and nothing cancels where p is near q.
    """
    gap = base.z.sub_(tuned.z)
    distance = tuned.mass.log() - base.mass.log()
    forward = _sum(torch.mul(base.e, gap, out=scratch)) / base.mass + distance
    reverse = -_sum(torch.mul(tuned.e, gap, out=scratch)) / tuned.mass - distance
    p, q = (side.e.mul_((1 / side.mass)[:, None].to(gap.dtype)) for side in (base, tuned))
    total = torch.add(p, q, out=scratch).add_(torch.finfo(p.dtype).tiny)  # 0 / 0 where both vanish
    ratio = torch.sub(p, q, out=tuned.z).abs_().div_(total)
    shares = ratio.log1p_().mul_(total)
    shares.sub_(gap.add_(distance[:, None].to(gap.dtype)).abs_().mul_(torch.minimum(p, q, out=p)))
    return [forward, reverse, _sum(shares) / 2]


def _with_infinities(z: Tensor, y: Tensor, targets: Tensor) -> list[Tensor]:
    """The first eleven columns of rows that hold a NaN or an infinity; a logit of −inf is a probability of 0.

    A token that neither side can produce adds nothing; one that only one side can makes a KL infinite.
    """
    broken = ~(z.amax(-1).isfinite() & y.amax(-1).isfinite())
    nan = torch.full_like(broken, math.nan, dtype=torch.float64)
    p, q = z.log_softmax(-1), y.log_softmax(-1)
    top = p.topk(min(2, p.shape[1]), -1).values.exp()
    mean = (top[:, 0] + top[:, -1]) / 2
    logps = [side.gather(-1, targets[:, None])[:, 0] for side in (p, q)]
    columns = [
        divergences.reverse(p, q),
        divergences.reverse(q, p),
        divergences.jensen_shannon(p, q),
        *logps,
        ~broken & (p.argmax(-1) == q.argmax(-1)),
        torch.xlogy(top, top / mean[:, None]).sum(-1),
        torch.where(broken, 0, 1 + (q > logps[1][:, None]).sum(-1)),
        *(torch.special.entr(side.exp()).sum(-1) for side in (p, q)),
        top[:, 0],
    ]
    return [torch.where(broken, nan, c) if c.dtype == torch.float64 else c for c in columns]
