"""Token log-probs, exact KL and entropies from final hidden states and head(s), without the logits.

Forward, each tile of logits leaves a few moments per token, merged as in an online log-sum-exp (`moments`). Backward
recomputes each tile and turns it in place into its own gradient, which two more products carry to the hidden states and
the head. Both sides go through the same arithmetic in the same order, so policy == reference gives exactly 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from kleash.errors import UsageError
from kleash.kl.moments import NOTHING_MORE, Also, Job, locate, scan, unpack
from kleash.kl.tiles import Grid, Recipe, Side, accumulate, view
from kleash.tensors import Head

#: Bytes of one tile of logits. On a CPU three of them should share the last-level cache; elsewhere, fill the device.
CPU_CHUNK_BYTES = 8 << 20
DEVICE_CHUNK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Fused:
    """What one pass over the head(s) gives, per token, in nats; float32 (float64 if an input is).

    logprobs: log π(target); entropy: of π; ref_logprobs: log π_ref(target); kl: KL(π ‖ π_ref); kl_forward:
    KL(π_ref ‖ π); ref_entropy: of π_ref; renyi: D_α(π ‖ π_ref). None: not measured (no reference, or not asked for).
    """

    logprobs: Float[Tensor, "*s"]
    entropy: Float[Tensor, "*s"]
    ref_logprobs: Float[Tensor, "*s"] | None = None
    kl: Float[Tensor, "*s"] | None = None
    kl_forward: Float[Tensor, "*s"] | None = None
    ref_entropy: Float[Tensor, "*s"] | None = None
    renyi: Float[Tensor, "*s"] | None = None


def fused(
    hidden: Float[Tensor, "*s H"],
    head: Head,
    targets: Int[Tensor, "*s"],
    *,
    ref_hidden: Float[Tensor, "*s K"] | None = None,
    ref_head: Head | None = None,
    temperature: float = 1.0,
    also: Also = NOTHING_MORE,
    chunk_bytes: int | None = None,
) -> Fused:
    """Log-probs of `targets`, entropy and exact KL to the reference, differentiable in hidden, weight and bias.

    Logits are softcap·tanh(scale·(h Wᵀ + b) / softcap) / temperature; rows of a head ≥ `vocab` are never computed. The
    reference is a constant. No tensor of tokens × vocabulary is made: a tile of logits takes `chunk_bytes` (default:
    by device), and there are three or four. With p the policy and q the reference, the gradients in the logits are

        log p(target): 1[v = target] − p           entropy: −p (log p + H)
        KL(p ‖ q): p ((log p − log q) − KL)        KL(q ‖ p): p − q
        D_α(p ‖ q): α/(α − 1) (w − p)              with w = p^α q^(1−α) / Σ p^α q^(1−α)

    Raises:
        UsageError: the heads' vocabularies differ, only one of `ref_hidden` and `ref_head` is given, a head does not
            fit its hidden states, a target is not in the vocabulary, temperature or chunk_bytes is not positive, or
            the order is not a positive number other than 1.

    Source: Milakov & Gimelshein 2018 (arXiv 1805.02867, online softmax), extended to the KL and its gradient.
    Proved by: tests/kl/test_fused.py::test_values_and_gradients_equal_float64_autograd
    """
    sides = _sides(hidden, head, ref_hidden, ref_head, targets)
    if not temperature > 0 or (chunk_bytes is not None and chunk_bytes < 1):
        raise UsageError(f"temperature ({temperature}) and chunk_bytes ({chunk_bytes}) must be positive.")
    if also.order is not None and not (0 < also.order < math.inf and also.order != 1):
        raise UsageError(f"The order of a Rényi divergence is positive and not 1 (the KL), not {also.order}.")
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else DEVICE_CHUNK_BYTES
    wide = any(x.dtype == torch.float64 for h, w in sides for x in (h, w.weight))
    dtype = torch.float64 if wide else torch.float32
    job = Job(
        grid=Grid(targets.numel(), head.vocab, max(1, chunk_bytes // dtype.itemsize)),
        recipes=tuple(Recipe.of(w, h, temperature, dtype) for h, w in sides),
        dtype=dtype,
        also=also,
    )
    tensors = [x for h, w in sides for x in (h.reshape(targets.numel(), h.shape[-1]), w.weight, w.bias)]
    with torch.autocast(hidden.device.type, enabled=False):
        logprobs, entropy, *rest = _Fused.apply(job, targets.flatten().long(), *tensors)
    shaped = (x if x is None else x.view(targets.shape) for x in rest)
    return Fused(logprobs.view(targets.shape), entropy.view(targets.shape), *shaped)


def _sides(
    hidden: Tensor, head: Head, ref_hidden: Tensor | None, ref_head: Head | None, targets: Tensor
) -> list[tuple[Tensor, Head]]:
    """The policy's hidden states and head, then the reference's if there is one, checked."""
    if (ref_hidden is None) != (ref_head is None):
        raise UsageError("ref_hidden and ref_head come together: give both, or neither for no KL.")
    sides = [(hidden, head)]
    if ref_hidden is not None and ref_head is not None:
        sides.append((ref_hidden, ref_head))
    for name, (h, w) in zip(("policy", "reference"), sides, strict=False):
        _check(name, h, w, targets.shape)
    if ref_head is not None and ref_head.vocab != head.vocab:
        raise UsageError(
            f"The policy's vocabulary has {head.vocab} tokens and the reference's {ref_head.vocab}; "
            "a KL needs the same tokens on both sides."
        )
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < head.vocab:
        raise UsageError(f"Targets must be token ids from 0 to {head.vocab - 1}; give padding any id in that range.")
    return sides


def _check(name: str, hidden: Tensor, head: Head, shape: torch.Size) -> None:
    if hidden.shape[:-1] != shape:
        raise UsageError(
            f"The {name}'s hidden states {tuple(hidden.shape)} must be the targets' shape {tuple(shape)} and a size."
        )
    rows, size = head.weight.shape
    if size != hidden.shape[-1] or not 0 < head.vocab <= rows:
        raise UsageError(
            f"The {name}'s head {rows, size} with vocab {head.vocab} does not fit hidden states of size "
            f"{hidden.shape[-1]}; it must be [rows ≥ vocab, {hidden.shape[-1]}]."
        )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, targets: Tensor, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        policy, reference = job.sides(tensors)
        moments = scan(job, policy, reference, targets)
        ctx.job = job
        ctx.save_for_backward(targets, moments, *tensors)
        ctx.set_materialize_grads(False)
        p, q, gap = unpack(moments)
        found: list[Tensor | None] = [p.logprobs(), p.entropy(), None, None, None, None, None]
        if q is not None and gap is not None:
            distance = (q.mass.log() - p.mass.log()) + (q.top - gap.base)  # of the log-normalisers, after the shifts
            found[2:4] = [q.logprobs(), gap.policy / p.mass + distance]
            found[4:6] = [-gap.reference / q.mass - distance if job.also.forward_kl else None, q.entropy()]
            if job.also.order is not None and gap.peak is not None and gap.power is not None:
                found[6] = (gap.peak + gap.power.log() - p.mass.log()) / (job.also.order - 1) + distance
        found = [x if x is None else x.to(job.dtype) for x in found]
        ctx.mark_non_differentiable(*(x for x in (found[2], found[5]) if x is not None))
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        targets, moments, *tensors = ctx.saved_tensors
        with torch.autocast(targets.device.type, enabled=False):
            found = _gradients(ctx.job, targets, moments, tensors, grads, ctx.needs_input_grad[2:5])
        return None, None, *found, *[None] * (len(tensors) - 3)


def _gradients(
    job: Job,
    targets: Tensor,
    moments: Tensor,
    tensors: Sequence[Any],
    grads: tuple[Tensor | None, ...],
    needed: tuple[bool, bool, bool],
) -> list[Tensor | None]:
    """Gradients of hidden, weight and bias (None where not needed), accumulated in the job's dtype."""
    policy, reference = job.sides(tensors)
    pull = _Pull.of(job, moments, grads)
    hidden, weight, bias = (torch.zeros_like(x) if n else None for x, n in zip(tensors[:3], needed, strict=True))
    d_hidden = None if hidden is None else torch.zeros_like(hidden, dtype=job.dtype)
    buffers = job.grid.buffers(3 + (pull.forward is not None) + (pull.tilt is not None), targets, job.dtype)
    for cols in job.grid.cols():
        head = policy.head(cols)
        d_weight = None if weight is None else torch.zeros_like(weight[cols], dtype=job.dtype)
        d_bias = None if bias is None else torch.zeros_like(bias[cols], dtype=job.dtype)
        for rows in job.grid.rows():
            tile = pull.rows(rows).tile(policy, reference, targets[rows], (rows, cols), buffers)
            if d_hidden is not None:
                accumulate(tile, head, d_hidden[rows])
            if d_weight is not None:
                accumulate(tile.T, policy.hidden[rows], d_weight)
            if d_bias is not None:
                d_bias += tile.sum(0)
        if weight is not None and d_weight is not None:
            weight[cols] = d_weight
        if bias is not None and d_bias is not None:
            bias[cols] = d_bias
    return [d_hidden if d_hidden is None else d_hidden.to(tensors[0].dtype), weight, bias]


class _Pull(NamedTuple):
    """Per-token coefficients, in the job's dtype, that turn a tile of logits into its gradient:

    e (level + kl₁ (z − y − kl₀) + entropy₁ (z − entropy₀)) + target·1[v = target] − forward₁ exp(y − forward₀)
    + tilt₁ exp(y + order (z − y) − tilt₀)

    with z and y the two sides' logits less top and base, and e = exp(z). None: that term has no gradient to carry.
    """

    top: Tensor  # [tokens, 1], as level, target and base
    level: Tensor
    target: Tensor | None = None
    entropy: Tensor | None = None  # [tokens, 2], as kl and forward
    base: Tensor | None = None
    kl: Tensor | None = None
    forward: Tensor | None = None
    tilt: Tensor | None = None  # [tokens, 3]: the peak, the weight, the order

    @staticmethod
    def of(job: Job, moments: Tensor, grads: tuple[Tensor | None, ...]) -> "_Pull":
        slope = job.recipes[0].slope
        target, entropy, _, kl, forward, _, renyi = (g if g is None else g.to(moments.dtype) * slope for g in grads)
        p, q, gap = unpack(moments)
        level = (0 if forward is None else forward) - (torch.zeros_like(p.mass) if target is None else target)
        order = job.also.order
        tilt = None if renyi is None or order is None else renyi * (order / (order - 1))
        level = level if tilt is None else level - tilt

        def columns(*xs: Tensor) -> Tensor:
            return torch.stack(xs, 1).to(job.dtype)

        pull = _Pull(columns(p.top), columns(level / p.mass))
        if target is not None:
            pull = pull._replace(target=columns(target))
        if entropy is not None:
            pull = pull._replace(entropy=columns(p.energy / p.mass, -entropy / p.mass))
        if q is not None and gap is not None and kl is not None:
            pull = pull._replace(base=columns(gap.base), kl=columns(gap.policy / p.mass, kl / p.mass))
        if q is not None and gap is not None and forward is not None:
            pull = pull._replace(base=columns(gap.base), forward=columns(q.top - gap.base, forward / q.mass))
        if (
            gap is not None
            and order is not None
            and tilt is not None
            and gap.peak is not None
            and gap.power is not None
        ):
            weight = tilt / gap.power
            pull = pull._replace(base=columns(gap.base), tilt=columns(gap.peak, weight, torch.full_like(weight, order)))
        return pull

    def rows(self, rows: slice) -> "_Pull":
        return self._make(x if x is None else x[rows] for x in self)

    def tile(
        self, policy: Side, reference: Side | None, targets: Tensor, at: tuple[slice, slice], buffers: list[Tensor]
    ) -> Tensor:
        """The gradient of one tile of (h Wᵀ + b), in place of its logits; `self` and `targets` are of its rows."""
        z = policy.logits(*at, buffers[0])
        cap_slope = policy.cap_slope(z)
        e = torch.exp(z.sub_(self.top), out=view(buffers[1], *at))
        factor, e_ref, tilted = None, None, None
        if reference is not None and self.base is not None:
            y = reference.logits(*at, buffers[2]).sub_(self.base)
            if self.forward is not None:
                shift, weight = self.forward.split(1, -1)
                e_ref = torch.sub(y, shift, out=view(buffers[3], *at)).exp_().mul_(weight)
            if self.tilt is not None:
                peak, weight, order = self.tilt.split(1, -1)
                tilted = torch.sub(z, y, out=view(buffers[-1], *at)).mul_(order).add_(y)
                tilted.sub_(peak).exp_().mul_(weight)
            if self.kl is not None:
                mean, weight = self.kl.split(1, -1)
                factor = torch.sub(z, y, out=y).sub_(mean).mul_(weight)
        if self.entropy is not None:
            mean, weight = self.entropy.split(1, -1)
            z.sub_(mean).mul_(weight)
            factor = z if factor is None else factor.add_(z)
        e.mul_(self.level if factor is None else factor.add_(self.level))
        if self.target is not None:
            index, inside = locate(targets, at[1])
            e.scatter_add_(-1, index, torch.where(inside, self.target, 0))
        if e_ref is not None:
            e.sub_(e_ref)
        if tilted is not None:
            e.add_(tilted)
        return e if cap_slope is None else e.mul_(cap_slope)
