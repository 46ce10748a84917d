"""Keys and values under activation checkpointing, where transformers would drop them without an error.

Under checkpointing its layers set their cache to None (it would be written a second time on the replay in the backward
pass), and a completion would run without its prompt. Here a layer's replay writes to a copy of the cache as it was
before the layer first ran, so that caches and checkpointing go together.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, LinearAttentionCacheLayerMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from kleash.errors import RunError


def fork(cache: Cache) -> Cache:
    """A cache of its own over the same tensors: what is added to one is not seen by the other.

    Raises:
        RunError: a layer keeps more than keys and values (a recurrent state), which may be written in place.
    """
    if others := {type(layer).__name__ for layer in cache.layers if not _only_grows(layer)}:
        raise RunError(
            f"this model keeps more than keys and values of its prompt ({', '.join(sorted(others))}), which cannot be "
            'replayed for a gradient; use path="plain"'
        )
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def _only_grows(layer: Any) -> bool:
    if isinstance(layer, DummyLayer):  # holds nothing: its layer reads another's keys and values
        return True
    return isinstance(layer, DynamicLayer) and not isinstance(layer, LinearAttentionCacheLayerMixin)


@contextmanager
def cache_kept(body: nn.Module, *, recompute: bool) -> Iterator[None]:
    """Inside, layers keep their cache under activation checkpointing; nothing changes where that is off.

    recompute: each layer's activations are still computed again in the backward pass. False: they are kept, for the
    caller recomputes the whole.
    """
    checkpointed = [layer for layer in body.modules() if getattr(layer, "gradient_checkpointing", False)]
    if not (checkpointed and body.training and torch.is_grad_enabled()):
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_switched_off(checkpointed))
        for layer in checkpointed if recompute else ():
            if isinstance(layer, GradientCheckpointingLayer):
                stack.enter_context(_replayed(layer))
        yield


@contextmanager
def _switched_off(layers: list[Any]) -> Iterator[None]:
    for layer in layers:
        layer.gradient_checkpointing = False
    try:
        yield
    finally:
        for layer in layers:
            layer.gradient_checkpointing = True


@contextmanager
def _replayed(layer: nn.Module) -> Iterator[None]:
    own = layer.forward
    layer.forward = partial(_checkpointed, layer, own)
    try:
        yield
    finally:
        del layer.forward  # the class's own shows again


def _checkpointed(layer: nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    before = {name: fork(value) for name, value in kwargs.items() if isinstance(value, Cache)}
    replaying = False

    def run(*inputs: Any) -> Any:
        nonlocal replaying
        caches = {name: fork(cache) for name, cache in before.items()} if replaying else {}
        replaying = True
        flagged = [m for m in layer.modules() if getattr(m, "gradient_checkpointing", False)]
        with _switched_off(flagged):
            return own(*inputs, **kwargs | caches)

    return recomputed(run, *args)


def recomputed(run: Callable[..., Any], *args: Any) -> Any:
    """run(*args), whose activations are computed again in the backward pass instead of kept; no dropout, no noise."""
    if not torch.is_grad_enabled():
        return run(*args)
    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False)
