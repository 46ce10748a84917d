"""The head recipe is read from the config and proved against the model's own logits."""

import math
from typing import Any

import pytest
import torch
from tests.models import build
from torch import nn
from transformers import AutoModelForCausalLM, CohereConfig, Gemma2Config, GraniteConfig

from kleash.errors import RunError
from kleash.models import adapters
from kleash.models.heads import Recipe, head_of, probe_head, recipe_from
from kleash.models.policy import Policy
from kleash.models.probe import probe_paths
from kleash.models.spec import Adapter

SCALED: dict[str, tuple[Any, Recipe]] = {
    "soft-cap": (Gemma2Config(**build.SIZES, final_logit_softcapping=3.0), Recipe(build.VOCAB, softcap=3.0)),
    "divided": (GraniteConfig(**build.SIZES, logits_scaling=4.0), Recipe(build.VOCAB, scale=0.25)),
    "multiplied": (CohereConfig(**build.SIZES, logit_scale=0.125), Recipe(build.VOCAB, scale=0.125)),
}


@pytest.mark.parametrize(("config", "expected"), SCALED.values(), ids=SCALED)
def test_recipes_of_models_that_scale_or_cap_their_logits(config: Any, expected: Recipe) -> None:
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    recipe = recipe_from(model.config, build.VOCAB)
    assert recipe == expected
    probe_head(model, recipe)
    assert probe_paths(Policy(model, recipe).eval()).training == ("packed", "cached", "two_stage", "plain")
    with pytest.raises(RunError, match="log-probs and KL would be wrong"):
        probe_head(model, Recipe(build.VOCAB))  # as if the config had said nothing


def test_a_head_that_does_something_unknown_is_found() -> None:
    model = build.model("llama")
    model.lm_head.register_forward_hook(lambda _module, _args, logits: logits + 0.01 * logits.square())
    with pytest.raises(RunError, match="does something that kleash does not know"):
        probe_head(model, recipe_from(model.config, build.VOCAB))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_weights_are_not_taken_for_an_unknown_head(bad: float) -> None:
    model = build.model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(bad)
    with pytest.raises(RunError, match=r"NaN or infinite logits.*its weights are broken"):
        probe_head(model, recipe_from(model.config, build.VOCAB))


def test_a_head_that_is_no_linear_layer_is_refused() -> None:
    model = build.model("llama")
    model.lm_head = nn.Sequential(model.lm_head, nn.Tanh())
    with pytest.raises(RunError, match="is a Sequential, and kleash knows linear heads only"):
        head_of(model, Recipe(build.VOCAB))


def test_a_bias_on_the_head_counts() -> None:
    model = build.model("qwen2")
    model.lm_head = nn.Linear(32, build.VOCAB)
    recipe = recipe_from(model.config, build.VOCAB)
    probe_head(model, recipe)
    assert head_of(model, recipe).bias is model.lm_head.bias


def test_an_adapter_on_the_head_is_refused() -> None:
    model = build.model("qwen2")
    with pytest.raises(RunError, match="no adapter on the head"):
        adapters.attach(model, Adapter(rank=2, targets=["q_proj", "lm_head"]), "base", seed=0)


def test_all_linear_leaves_the_head_alone() -> None:
    adapted = adapters.attach(build.model("qwen2"), Adapter(rank=2), "base", seed=0)
    assert Policy(adapted, Recipe(build.VOCAB)).head().weight.shape == (build.VOCAB, 32)


def test_a_model_whose_numbers_depend_on_padding_is_refused() -> None:
    """Attention to everything in the row, padding too: the plain path cannot agree with single rows."""
    policy = build.policy("llama")
    policy.causal.model.layers[0].register_forward_hook(lambda _m, _a, out: out + out.mean(1, keepdim=True))
    with pytest.raises(RunError, match="depend on the batch"):
        probe_paths(policy)


def test_a_model_that_ignores_the_block_mask_keeps_the_other_paths() -> None:
    policy = build.policy("llama")

    def causal_only(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (mask := kwargs.get("attention_mask")) is not None and mask.ndim == 4:
            kwargs["attention_mask"] = None
        return args, kwargs

    policy.body.register_forward_pre_hook(causal_only, with_kwargs=True)
    assert probe_paths(policy).training == ("cached", "two_stage", "plain")


def test_gpt2_passes_too() -> None:
    policy = build.policy("gpt2")
    probe_head(policy.causal, policy.recipe)
    assert probe_paths(policy).training == ("packed", "cached", "two_stage", "plain")


def test_probing_leaves_no_gradients() -> None:
    policy = build.policy()
    probe_head(policy.causal, policy.recipe)
    probe_paths(policy)
    assert all(p.grad is None and p.requires_grad for p in policy.parameters())
    assert torch.is_grad_enabled()
