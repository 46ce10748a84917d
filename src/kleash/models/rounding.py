"""A model in other clothes for a moment: its weights rounded to few bits, or held in another precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.models.policy import Policy

#: Weights that share a scale, and the rounding in words, for the yardstick.
GROUP = 32
SCHEME = f"4 bits, round to nearest, a scale (absmax / 7) for each {GROUP} weights, linear layers of the body"
#: A matrix is on a 4-bit grid where so many of its groups have at most 16 values; so many groups are looked at.
_ON_GRID = 0.9
_GROUPS_SEEN = 256


def rounded(weight: Float[Tensor, "out in"]) -> Float[Tensor, "out in"]:
    """Each weight at the nearest of 15 levels between minus and plus the largest of its group."""
    rows, width = weight.shape
    padded = nn.functional.pad(weight.float(), (0, -width % GROUP)).view(rows, -1, GROUP)
    scale = padded.abs().amax(-1, keepdim=True) / 7
    levels = (padded / torch.where(scale > 0, scale, 1)).round()
    return (levels * scale).view(rows, -1)[:, :width].to(weight.dtype)


@contextmanager
def in_four_bits(policy: Policy) -> Iterator[None]:
    """The policy with the linear layers of its body rounded, one layer at a time while it runs: no second model."""

    def before(module: Any, _: Any) -> None:
        module.kleash_kept = module.weight.data
        module.weight.data = rounded(module.weight.data)

    def after(module: Any, *_: Any) -> None:
        module.weight.data = module.kleash_kept
        del module.kleash_kept

    hooks = []
    for module in linear_layers(policy):
        hooks += [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, always_call=True),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def linear_layers(policy: Policy) -> list[nn.Linear]:
    """Of the body, adapters aside."""
    return [
        module
        for name, module in policy.body.named_modules()
        if isinstance(module, nn.Linear) and not any(part.startswith("lora_") for part in name.split("."))
    ]


def share_on_grid(policy: Policy) -> float:
    """The share of the body's linear weights that lie on a 4-bit grid already, by a look at each matrix."""
    on = total = 0
    for module in linear_layers(policy):
        total += module.weight.numel()
        groups = module.weight.detach()[:, : module.weight.shape[1] // GROUP * GROUP].reshape(-1, GROUP)
        seen = groups[:: max(1, len(groups) // _GROUPS_SEEN)].float().sort(-1).values
        values = 1 + (seen.diff(dim=-1) != 0).sum(-1)
        if len(values) and float((values <= 16).float().mean()) >= _ON_GRID:
            on += module.weight.numel()
    return on / total if total else 0.0


@contextmanager
def held_in(policy: Policy, dtype: torch.dtype) -> Iterator[None]:
    """The policy's weights in another precision; afterwards the very tensors it had. Both are in memory meanwhile."""
    kept = [(tensor, tensor.data) for tensor in (*policy.parameters(), *policy.buffers()) if tensor.is_floating_point()]
    stored = policy.causal.dtype
    try:
        for tensor, data in kept:
            if data.dtype == stored:  # what is kept in another precision on purpose (rotary frequencies) stays
                tensor.data = data.to(dtype)
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data
