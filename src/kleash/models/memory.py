"""How wide a model is, for what a step takes of the memory."""

from collections.abc import Sequence
from typing import Any

from kleash.models.measured import kept
from kleash.models.paths import PathName
from kleash.models.plan import Size
from kleash.models.policy import Policy
from kleash.models.quantised import quantised_layers


def size_of(policy: Policy, paths: Sequence[PathName]) -> Size:
    """The policy's widths, from its config and its weights, and what its layers keep by some of these paths."""
    config: Any = policy.config.get_text_config()
    hidden = config.hidden_size
    heads = _most(config, "num_attention_heads") or 1  # a recurrent model has none: as wide as its state
    width = _most(config, "head_dim") or hidden // heads
    embedding = policy.causal.get_input_embeddings().weight
    matrices = {id(p): p.numel() for p in policy.body.parameters() if p.ndim > 1 and p is not embedding}
    packed = sum(layer.in_features * layer.out_features for layer in quantised_layers(policy.body))
    return Size(
        layers=config.num_hidden_layers,
        hidden=hidden,
        attention=heads * width,
        vocab=policy.recipe.vocab,
        weights=packed + sum(matrices.values()),
        kept=kept(policy, shares="cached" in paths),
        element=(policy.compute or policy.causal.dtype).itemsize,
        stream=policy.causal.dtype.itemsize,
        bodies=2 if policy.critic is not None and policy.critic.body is not None else 1,
        gradients=sum(p.nbytes for p in policy.parameters() if p.requires_grad),
        recomputed=any(getattr(module, "gradient_checkpointing", False) for module in policy.body.modules()),
    )


def _most(config: Any, name: str) -> int | None:
    """A size that may differ from layer to layer: the largest; None where the config has none."""
    value: Any = getattr(config, name, None)
    several: list[int] = list(value) if isinstance(value, list | tuple) else [value or 0]
    return max(several) or None
