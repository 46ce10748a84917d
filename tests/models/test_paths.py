"""The paths are exact: values and gradients against single rows without padding, for several architectures."""

from typing import Any

import pytest
import torch
from tests import tolerances
from tests.models import build
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from kleash.errors import RunError
from kleash.models import adapters, paths
from kleash.models.counting import TokenCounter
from kleash.models.paths._replay import fork
from kleash.models.policy import Policy
from kleash.models.spec import Adapter
from kleash.tensors import Rollout

PATHS = ["packed", "cached", "two_stage", "plain"]


def with_adapter(policy: Policy) -> Policy:
    """A LoRA adapter that does something: B is random, not 0."""
    adapted = adapters.attach(policy.model, Adapter(rank=3), "base", seed=0)
    dtype = policy.causal.dtype
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, dtype=dtype) * 0.2
    return Policy(adapted, policy.recipe)


def gradients(policy: Policy, hidden: Tensor) -> dict[str, Tensor]:
    """Of a fixed random projection of the hidden states, for every parameter that is trained."""
    weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=hidden.dtype)
    names, parameters = zip(*((n, p) for n, p in policy.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad((hidden * weight).sum(), parameters, allow_unused=True)
    return {name: grad for name, grad in zip(names, found, strict=True) if grad is not None}


def largest_error(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys() != set()
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max()) for n in ours)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", build.LLAMA_FAMILY)
def test_paths_equal_unpadded_single_rows_in_float64(kind: str, lora: bool, path: Any) -> None:
    policy = build.policy(kind, torch.float64)
    policy = with_adapter(policy) if lora else policy
    sample = build.rollout()
    hidden = policy.hidden(sample, path)[sample.mask]
    truth = build.single_rows(policy.body, sample)
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)
    assert largest_error(gradients(policy, hidden), gradients(policy, truth)) < tolerances.EXACT


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", build.LLAMA_FAMILY)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_paths_equal_unpadded_single_rows_in_fp32(kind: str, attention: str, path: Any) -> None:
    policy = build.policy(kind, attn_implementation=attention, initializer_range=0.1)
    assert policy.config._attn_implementation == attention
    sample = build.rollout()
    hidden = policy.hidden(sample, path)[sample.mask]
    truth = build.single_rows(policy.body, sample)
    torch.testing.assert_close(hidden, truth, rtol=tolerances.PATHS, atol=tolerances.PATHS)
    assert largest_error(gradients(policy, hidden), gradients(policy, truth)) < tolerances.PATHS_GRADIENT


@pytest.mark.parametrize("path", PATHS)
def test_a_window_shorter_than_the_prompt(path: Any) -> None:
    policy = build.policy("mistral", torch.float64, sliding_window=3)
    sample = build.rollout()
    hidden = policy.hidden(sample, path)[sample.mask]
    truth = build.single_rows(policy.body, sample)
    full = build.single_rows(build.policy("mistral", torch.float64).body, sample)
    assert (truth - full).abs().max() > 0.1  # the window matters here
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_layers_of_two_kinds(path: Any) -> None:
    kinds = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
    policy = build.policy("qwen2", torch.float64, **kinds)
    sample = build.rollout()
    truth = build.single_rows(policy.body, sample)
    hidden = policy.hidden(sample, path)[sample.mask]
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_groups_of_unequal_size_and_tokens_that_do_not_count(path: Any) -> None:
    """Tokens without a count in the middle of a completion (forced, from a tool) are context all the same."""
    policy = build.policy("llama", torch.float64)
    sample = build.rollout((4, 6), ((5, 3, 1, 6), (2,)))
    sample.mask[0, 1:3] = False
    hidden = policy.hidden(sample, path)[sample.mask]
    truth = build.single_rows(policy.body, sample)
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)


@pytest.mark.parametrize("path", PATHS)
def test_one_token_completions_and_empty_ones(path: Any) -> None:
    policy = build.policy("llama", torch.float64)
    sample = build.rollout((4, 6), ((1, 1), (1, 1)))
    truth = build.single_rows(policy.body, sample)
    hidden = policy.hidden(sample, path)
    torch.testing.assert_close(hidden[:, 0], truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)
    sample.mask[1] = False  # a completion that is only padding
    assert policy.hidden(sample, path).isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_what_lies_under_the_masks_changes_nothing(path: Any) -> None:
    policy = build.policy("llama", torch.float64)
    sample, other = build.rollout(), build.rollout(seed=9)
    garbled = Rollout(
        prompt_ids=torch.where(sample.prompt_mask, sample.prompt_ids, other.prompt_ids),
        prompt_mask=sample.prompt_mask,
        completion_ids=torch.where(sample.mask, sample.completion_ids, 10**6),  # not even a token
        mask=sample.mask,
        group=sample.group,
        sampler=sample.sampler,
        truncated=sample.truncated,
    )
    assert torch.equal(policy.hidden(garbled, path)[sample.mask], policy.hidden(sample, path)[sample.mask])


WAYS = [("packed", None), ("cached", None), ("two_stage", None), ("two_stage", 1), ("two_stage", 4), ("plain", 2)]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", ["llama", "window"])
def test_activation_checkpointing_changes_nothing(kind: str, lora: bool, way: Any) -> None:
    """Values and every gradient, prompts of unequal length and groups of unequal size among them."""
    made = {"sliding_window": 3} if kind == "window" else {}
    kind = "mistral" if kind == "window" else kind
    plain, checkpointed = (build.policy(kind, torch.float64, **made) for _ in range(2))
    if lora:
        torch.manual_seed(0)
        plain = with_adapter(plain)
        torch.manual_seed(0)
        checkpointed = with_adapter(checkpointed)
    checkpointed.causal.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    checkpointed.train()
    sample = build.rollout((5, 2, 7), ((4, 6, 1), (6,), (3, 5)))
    truth = build.single_rows(plain.body, sample)
    hidden = checkpointed.hidden(sample, *way)[sample.mask]
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)
    assert largest_error(gradients(checkpointed, hidden), gradients(plain, truth)) < tolerances.EXACT
    assert all(layer.gradient_checkpointing for layer in checkpointed.body.layers)  # as it was


@pytest.mark.parametrize("way", [("two_stage", 1), ("two_stage", 2), ("two_stage", 5), ("plain", 3)], ids=str)
def test_rows_a_few_at_a_time_change_nothing(way: Any) -> None:
    policy = build.policy("qwen3", torch.float64)
    sample = build.rollout((5, 2, 7), ((4, 6, 1), (6,), (3, 5)))
    sample.mask[1, 1:3] = False
    sample.mask[3] = False  # only padding
    truth = build.single_rows(policy.body, build.without_row(sample, 3))
    hidden = policy.hidden(sample, *way)[sample.mask]
    torch.testing.assert_close(hidden, truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)
    assert largest_error(gradients(policy, hidden), gradients(policy, truth)) < tolerances.EXACT


@pytest.mark.parametrize("checkpointing", [False, True])
def test_rows_are_not_kept_for_the_backward_pass(checkpointing: bool) -> None:
    """Bytes that autograd keeps: with rows one at a time, of the prompt's graph and not of the completions'."""
    kept = {}
    sample = build.rollout((12,), ((16,) * 6,))
    for way in (("packed", None), ("two_stage", 6), ("two_stage", 1)):
        policy = build.policy("llama", torch.float64)
        if checkpointing:
            policy.causal.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
            policy.train()
        kept[way] = bytes_kept(lambda way=way, policy=policy: policy.hidden(sample, *way))
    assert kept["two_stage", 1] < kept["packed", None] * (1 if checkpointing else 0.35)
    assert kept["two_stage", 1] <= 1.05 * kept["two_stage", 6]


def bytes_kept(run: Any) -> int:
    """Distinct bytes saved for the backward pass of `run()`."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = run()
    assert hidden.requires_grad
    return sum(sizes.values())


def test_a_prompt_that_is_not_in_the_cache_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers does under checkpointing, in silence: the cache is dropped and the completion runs alone."""
    policy = build.policy("llama")
    own = policy.body.forward
    monkeypatch.setattr(policy.body, "forward", lambda **given: own(**given | {"cache": None, "use_cache": False}))
    for path in ("cached", "two_stage"):
        with pytest.raises(RunError, match="without their prompt"):
            policy.hidden(build.rollout(), path)


@pytest.mark.parametrize("layer", [LinearAttentionLayer, LinearAttentionAndFullAttentionLayer])
def test_a_state_that_cannot_be_replayed_is_refused(layer: Any) -> None:
    cache = DynamicCache()
    cache.layers = [layer()]
    with pytest.raises(RunError, match=f"more than keys and values of its prompt .{layer.__name__}"):
        fork(cache)


def test_the_packed_path_refuses_layers_it_has_no_mask_for() -> None:
    policy = build.policy("llama")
    policy.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(RunError, match="chunked_attention"):
        policy.hidden(build.rollout(), "packed")
    policy = build.policy("llama", attn_implementation="sdpa")
    policy.config._attn_implementation_internal = "flex_attention"
    with pytest.raises(RunError, match="flex_attention"):
        policy.hidden(build.rollout(), "packed")


def test_the_packed_row_by_hand() -> None:
    """Two prompts [a b], [c]; completions of 3, 1 and 2 tokens, of which 2, 0 and 1 are fed."""
    sample = build.rollout((2, 1), ((3, 1), (2, 2)))
    ids, done = sample.prompt_ids, sample.completion_ids
    packing = paths.pack(sample)
    assert packing.ids.tolist() == [
        [ids[0, 0], ids[0, 1], done[0, 0], done[0, 1]],
        [0, ids[1, 1], done[2, 0], done[3, 0]],
    ]
    assert packing.positions.tolist() == [[0, 1, 2, 3], [0, 0, 1, 1]]
    assert packing.segment.tolist() == [[0, 0, 1, 1], [-1, 0, 3, 4]]
    assert packing.source.tolist() == [[1, 2, 3], [1, 1, 1], [5, 6, 5], [5, 7, 5]]
    assert paths.block_mask(packing)[1, 0].int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize("path", ["packed", "cached"])
def test_a_prompt_is_computed_once(path: Any) -> None:
    """At most N·P + N·G·T token positions, against N·G·(P + T) with the prompt repeated."""
    policy, sample = build.policy("llama"), build.rollout()
    counter = TokenCounter(policy)
    policy.hidden(sample, path)
    (N, P), (B, T) = sample.prompt_ids.shape, sample.completion_ids.shape
    assert counter.take()["other"] <= N * P + B * (T - 1)
    policy.hidden(sample, "plain")
    assert counter.take()["other"] == B * (P + T - 1)
