"""Forward half of `fused`: what each token must know of the whole vocabulary, gathered tile by tile.

Tiles are shifted by a token: the policy's by the logit of its top token, the reference's by the reference's logit of
that same token. Their difference, the gap, is then exactly 0 there, so a saturated policy keeps the true, tiny KL
gradient instead of rounding noise. Moments are float64 where the device has it: they are only [tokens], and the KL's
own noise in float32 falls to 1e-7 nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kleash.kl.tiles import Grid, Recipe, Side, view


@dataclass(frozen=True, slots=True)
class Also:
    """What is measured besides, where there is a reference. forward_kl: KL(π_ref ‖ π). order: α of D_α(π ‖ π_ref).

    What is not asked for costs nothing.
    """

    forward_kl: bool = False
    order: float | None = None


NOTHING_MORE = Also()


@dataclass(frozen=True, slots=True)
class Job:
    """Everything about one call that is not a tensor."""

    grid: Grid
    recipes: tuple[Recipe, ...]  # the policy's, and the reference's if there is one
    dtype: torch.dtype
    also: Also

    def sides(self, tensors: Sequence[Any]) -> tuple[Side, Side | None]:
        """From hidden states, weight and bias of the policy, then of the reference if there is one."""
        policy = Side.of(tensors[0], tensors[1], tensors[2], self.recipes[0])
        return policy, None if len(self.recipes) == 1 else Side.of(tensors[3], tensors[4], tensors[5], self.recipes[1])


class Softmax(NamedTuple):
    """Moments of one distribution, per token: e = exp(z − top), so log p = z − top − log mass."""

    top: Tensor  # the largest logit
    mass: Tensor  # Σ e
    energy: Tensor  # Σ e (z − top)
    target: Tensor  # the target's logit

    def logprobs(self) -> Tensor:
        return self.target - self.top - self.mass.log()

    def entropy(self) -> Tensor:
        return self.mass.log() - self.energy / self.mass


class Gap(NamedTuple):
    """Moments of gap = (z − top) − (z_ref − base), which is 0 at the policy's top token."""

    base: Tensor  # the reference's logit of the policy's top token
    policy: Tensor  # Σ e gap
    reference: Tensor  # Σ e_ref gap
    peak: Tensor | None = None  # the largest tilt = α (z − top) + (1 − α) (z_ref − base); where an order is asked for
    power: Tensor | None = None  # Σ exp(tilt − peak)


def unpack(rows: Tensor) -> tuple[Softmax, Softmax | None, Gap | None]:
    """[4, 11 or 13, tokens] → moments of the policy, and of the reference and the gap if there is one.

    Source: the layout that `scan` writes.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    if len(rows) == 4:
        return Softmax(*rows), None, None
    return Softmax(*rows[:4]), Softmax(*rows[4:8]), Gap(*rows[8:])


def scan(job: Job, policy: Side, reference: Side | None, targets: Tensor) -> Tensor:
    """Moments [4, 11 or 13, tokens] of every token over the whole vocabulary.

    Source: streaming softmax, Milakov & Gimelshein 2018, arXiv 1805.02867.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    state = torch.float64 if targets.device.type != "mps" else job.dtype
    count = 4 if reference is None else 11 if job.also.order is None else 13
    moments = targets.new_empty(count, len(targets), dtype=state)
    buffers = job.grid.buffers(2 if reference is None else 3, targets, job.dtype)
    for rows in job.grid.rows():
        total: Tensor | None = None
        for cols in job.grid.cols():
            tile = _scan_tile(job, policy, reference, targets[rows], (rows, cols), buffers)
            found = torch.stack([x.to(state) for x in tile])
            total = found if total is None else _merge(total, found, job.also.order)
        if total is not None:
            moments[:, rows] = total
    return moments


def _scan_tile(
    job: Job, policy: Side, reference: Side | None, targets: Tensor, at: tuple[slice, slice], buffers: list[Tensor]
) -> list[Tensor]:
    """Moments of one tile. The tiles are consumed in place: `z` ends as the gap, `y` as the reference's energy."""
    e, y = view(buffers[1], *at), view(buffers[-1], *at)
    z = policy.logits(*at, buffers[0])
    top, best = z.max(-1, keepdim=True)
    target = _pick(z, targets, at[1])
    torch.exp(z.sub_(top), out=e)
    mass = e.sum(-1)
    if reference is None:
        return [top.squeeze(-1), mass, e.mul_(z).sum(-1), target]
    found = [top.squeeze(-1), mass, torch.mul(e, z, out=y).sum(-1), target]
    y = reference.logits(*at, buffers[2])
    ref_top, base = y.amax(-1, keepdim=True), y.gather(-1, best)
    ref_target = _pick(y, targets, at[1])
    z.sub_(y.sub_(base))
    gap_policy = e.mul_(z).sum(-1)
    tilted = [] if job.also.order is None else _power_sum(torch.add(y, z, alpha=job.also.order, out=e))
    torch.exp(y.sub_(ref_top - base), out=e)
    ref_mass = e.sum(-1)
    gap_reference = z.mul_(e).sum(-1) if job.also.forward_kl else torch.zeros_like(mass)
    found += [ref_top.squeeze(-1), ref_mass, y.mul_(e).sum(-1), ref_target]
    return [*found, base.squeeze(-1), gap_policy, gap_reference, *tilted]


def _power_sum(tilt: Tensor) -> list[Tensor]:
    """Its largest value and Σ exp(tilt − largest); the tile is consumed."""
    peak = tilt.amax(-1, keepdim=True)
    return [peak.squeeze(-1), tilt.sub_(peak).exp_().sum(-1)]


def locate(targets: Tensor, cols: slice) -> tuple[Tensor, Tensor]:
    """Where targets lie in a tile of these columns, [tokens, 1]: an always valid index, and whether it is true.

    Source: the definition.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    inside = ((targets >= cols.start) & (targets < cols.stop))[:, None]
    return torch.where(inside, targets[:, None] - cols.start, 0), inside


def _pick(tile: Tensor, targets: Tensor, cols: slice) -> Tensor:
    """The target's logit where the target lies in this tile, else 0."""
    index, inside = locate(targets, cols)
    return torch.where(inside, tile.gather(-1, index), 0).squeeze(-1)


def _merge(first: Tensor, second: Tensor, order: float | None) -> Tensor:
    """Moments over two sets of columns → over their union."""
    (p1, q1, gap1), (p2, q2, gap2) = unpack(first), unpack(second)
    p, weights = _merge_softmax(p1, p2)
    if q1 is None or q2 is None or gap1 is None or gap2 is None:
        return torch.stack(p)
    q, ref_weights = _merge_softmax(q1, q2)
    base = torch.where(p1.top >= p2.top, gap1.base, gap2.base)
    policy = reference = torch.zeros_like(base)
    for (pi, qi, gap), w, ref_w in zip(((p1, q1, gap1), (p2, q2, gap2)), weights, ref_weights, strict=True):
        shift = (pi.top - p.top) - (gap.base - base)  # each half measured the gap from its own top token
        policy = policy + w * (gap.policy + shift * pi.mass)
        reference = reference + ref_w * (gap.reference + shift * qi.mass)
    merged = [*p, *q, base, policy, reference]
    if order is not None:
        halves = ((p1, gap1), (p2, gap2))
        shifts = [order * (pi.top - p.top) + (1 - order) * (gap.base - base) for pi, gap in halves]
        merged += _merge_powers((gap1, gap2), shifts)
    return torch.stack(merged)


def _merge_powers(gaps: tuple[Gap, Gap], shifts: list[Tensor]) -> list[Tensor]:
    peaks = [shift if gap.peak is None else gap.peak + shift for gap, shift in zip(gaps, shifts, strict=True)]
    peak = torch.maximum(*peaks)
    powers = [
        (own - peak).exp() if g.power is None else (own - peak).exp() * g.power
        for g, own in zip(gaps, peaks, strict=True)
    ]
    return [peak, powers[0] + powers[1]]


def _merge_softmax(a: Softmax, b: Softmax) -> tuple[Softmax, tuple[Tensor, Tensor]]:
    top = torch.maximum(a.top, b.top)
    weights = (a.top - top).exp(), (b.top - top).exp()
    mass = weights[0] * a.mass + weights[1] * b.mass
    energies = [w * (x.energy + (x.top - top) * x.mass) for x, w in zip((a, b), weights, strict=True)]
    return Softmax(top, mass, energies[0] + energies[1], a.target + b.target), weights
