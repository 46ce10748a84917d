"""Where a causal language model keeps its parts: transformers names them differently from family to family."""

import inspect
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn
from transformers.cache_utils import CacheLayerMixin, LinearAttentionCacheLayerMixin

from kleash.errors import RunError


def text_config(model: Any) -> Any:
    """The config of the part that reads and writes text: a model that also sees keeps it inside its own."""
    return model.config.get_text_config(decoder=True)


def body_of(model: Any) -> nn.Module:
    """The model without its head, and without what sees or hears: ids in, final hidden states out.

    Raises:
        RunError: there is no such part.
    """
    if text_config(model) is not model.config and (decoder := model.get_decoder()) is not model:
        return decoder
    body = model.base_model
    if body is model:  # it names a part that it does not have (Llama 4's text model)
        body = next((part for part in model.children() if hasattr(part, "get_input_embeddings")), None)
    if body is None:
        raise RunError(
            f"{type(model).__name__} keeps its body and its head in one module, and kleash needs the hidden states "
            "between them; it cannot train this model"
        )
    return body


def keeps_states_only(cache: Any) -> bool:
    """True for the cache of a model that is recurrent in every layer: it has no length."""
    states = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)
    return states and not any(isinstance(layer, CacheLayerMixin) for layer in cache.layers)


def run_body(
    body: nn.Module,
    ids: Int[Tensor, "R L"],
    mask: Tensor | dict[str, Tensor] | None,
    positions: Int[Tensor, "R L"],
    cache: Any = None,
) -> Any:
    """One forward of a body. Positions are explicit, but for a model that knows none: its order is in the mask.

    `mask`: over all tokens so far, [R,K], True or 1 where they count; or a block mask in the form the model takes.
    """
    accepted = inspect.signature(body.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())
    given: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None}
    if cache is not None and isinstance(mask, Tensor) and keeps_states_only(cache):
        mask = mask[:, -ids.shape[1] :]  # what was read before is in the states
    if mask is not None:
        given["attention_mask"] = mask.long() if isinstance(mask, Tensor) and mask.ndim == 2 else mask
    if "position_ids" in accepted or anything:
        given["position_ids"] = positions
    if cache is not None:
        # transformers' own models call it `cache`; models with code of their own mostly by its older name
        given["past_key_values" if "cache" not in accepted and "past_key_values" in accepted else "cache"] = cache
    return body(**given)
