"""The head recipe: how a model turns final hidden states into logits, read from its config and proved at load."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.errors import RunError
from kleash.models.anatomy import body_of
from kleash.tensors import Head

#: Largest difference between recipe and model, relative to the largest logit: rounding of one product, no more.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the head does besides its product with the weight; see `kleash.tensors.Head`."""

    vocab: int
    scale: float = 1.0
    softcap: float | None = None


def recipe_from(config: Any, vocab: int) -> Recipe:
    """The recipe that the config's fields announce: scale (Granite, Cohere, Falcon-H1), soft-cap (Gemma)."""
    scale = 1.0 / _number(config, "logits_scaling", 1.0)
    scale *= _number(config, "logit_scale", 1.0) * _number(config, "lm_head_multiplier", 1.0)
    caps = [_number(config, name, None) for name in ("final_logit_softcapping", "logits_soft_cap")]
    return Recipe(vocab, scale, next((cap for cap in caps if cap), None))


def _number(config: Any, name: str, otherwise: Any) -> Any:
    """A field that may be absent, None, 0 for "none", or a word (MPT), which no head here follows."""
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) and value else otherwise


def head_of(model: Any, recipe: Recipe) -> Head:
    """The model's head with its weight live: training the weight, tied or not, goes through it.

    Raises:
        RunError: no linear head, or an adapter on it (its effective weight is not the stored one).
    """
    layer = model.get_output_embeddings()
    if layer is None:
        raise RunError(f"{type(model).__name__} has no language-model head, so it cannot be a policy")
    if is_adapted_layer(layer):
        raise RunError(
            f"the head of this model is a {type(layer).__name__}; kleash trains no adapter on the head: "
            "take lm_head and the embeddings out of the adapter's targets and of modules_to_save"
        )
    if not isinstance(layer, nn.Linear):
        raise RunError(
            f"the head of {type(model).__name__} is a {type(layer).__name__}, and kleash knows linear heads only; it "
            "cannot train this model"
        )
    return Head(layer.weight, layer.bias, recipe.vocab, recipe.scale, recipe.softcap)


def check_adapted(model: Any) -> None:
    """That no adapter is on the head, nor on embeddings that it shares its weight with.

    Raises:
        RunError: there is one.
    """
    weight, embedding = head_of(model, Recipe(0)).weight, model.get_input_embeddings()
    if is_adapted_layer(embedding) and embedding.weight is weight:
        raise RunError(
            f"the head of {type(model).__name__} shares its weight with the embeddings, and an adapter on the "
            "embeddings alone would part them; take the embeddings out of the adapter's targets"
        )


def is_adapted_layer(layer: Any) -> bool:
    """Whether an adapter sits on it."""
    return type(layer).__module__.startswith("peft")


def apply(hidden: Float[Tensor, "*s H"], head: Head) -> Float[Tensor, "*s V"]:
    """All logits, plainly; for the probe, and for a sampler's single next token."""
    logits = hidden @ head.weight[: head.vocab].T.to(hidden.dtype)
    if head.bias is not None:
        logits = logits + head.bias[: head.vocab].to(hidden.dtype)
    logits = logits * head.scale
    return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)


def _where(model: Any) -> str:
    """Which of several models it is, where that is known."""
    path = getattr(model.config, "_name_or_path", "")
    return f" ({path})" if path else ""


@torch.no_grad()
def probe_head(model: Any, recipe: Recipe) -> None:
    """Compares recipe(last hidden state) with the model's own logits on 16 tokens spread over the vocabulary.

    Raises:
        RunError: they differ by more than rounding: every KL would be that of another model.
    """
    ids = torch.linspace(0, recipe.vocab - 1, 16, device=model.device).long()[None]
    head = head_of(model, recipe)
    try:
        hidden = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        theirs = model(input_ids=ids, use_cache=False).logits[..., : recipe.vocab].float()
    except Exception as error:  # whatever a model of any make may raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(f"{type(model).__name__} cannot run a row of 16 tokens: {reason}") from error
    ours = apply(hidden.to(head.weight.dtype), head).float()
    if not bool(ours.isfinite().all()) and not bool(theirs.isfinite().all()):
        raise RunError(f"{type(model).__name__} gives NaN or infinite logits{_where(model)}: its weights are broken")
    error = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))
    if not error <= _ROUNDING[head.weight.dtype]:
        raise RunError(
            f"the head of {type(model).__name__} does something that kleash does not know: its logits differ from "
            f"hidden states times head by {error:.1e} of the largest, so log-probs and KL would be wrong"
        )
