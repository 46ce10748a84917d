"""One forward, the right numbers: against logits, log_softmax and autograd, single rows, no kleash on that side."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests import tolerances
from tests.models import build
from torch import Tensor

from kleash.errors import UsageError
from kleash.models import adapters
from kleash.models.policy import Policy
from kleash.models.spec import Adapter
from kleash.tensors import ReferenceStates, Rollout


def next_token_logprobs(policy: Policy, sample: Rollout, temperature: float) -> Tensor:
    """[M, V] by the library's own logits, each row alone; M counts in the order of `x[mask]`."""
    rows = []
    for i, n in enumerate(sample.group.tolist()):
        prompt = sample.prompt_ids[n][sample.prompt_mask[n]]
        completion = sample.completion_ids[i][sample.mask[i]]
        logits = policy.model(input_ids=torch.cat([prompt, completion])[None], use_cache=False).logits[0]
        rows.append((logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1))
    return torch.cat(rows)


def states(policy: Policy, sample: Rollout) -> ReferenceStates:
    with torch.no_grad():
        return ReferenceStates(policy.hidden(sample), policy.head())


@pytest.mark.parametrize("kind", build.LLAMA_FAMILY)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_look_equals_the_librarys_own_logits(kind: str, temperature: float) -> None:
    policy, other = (build.policy(kind, torch.float64, seed=seed) for seed in (0, 1))
    sample = build.rollout()
    look = policy(sample, reference=states(other, sample), temperature=temperature)
    p = next_token_logprobs(policy, sample, temperature)
    q = next_token_logprobs(other, sample, temperature).detach()
    token = sample.completion_ids[sample.mask][:, None]
    expected = {
        "logprobs": p.gather(1, token)[:, 0],
        "ref": q.gather(1, token)[:, 0],
        "entropy": -(p.exp() * p).sum(1),
        "kl": (p.exp() * (p - q)).sum(1),
    }
    for name, truth in expected.items():
        ours = getattr(look, name)
        torch.testing.assert_close(ours[sample.mask], truth, rtol=tolerances.EXACT, atol=tolerances.EXACT)
        assert (ours[~sample.mask] == 0).all()
    parameters = list(policy.parameters())
    loss, truth = (x.sum() for x in (look.kl - 0.3 * look.logprobs, expected["kl"] - 0.3 * expected["logprobs"]))
    for ours, theirs in zip(*(torch.autograd.grad(x, parameters) for x in (loss, truth)), strict=True):
        assert (ours - theirs).abs().max() <= tolerances.EXACT * theirs.abs().max()


def test_rows_beyond_the_tokenizer_have_no_probability() -> None:
    full = build.policy("llama", torch.float64)
    short = Policy(full.model, replace(full.recipe, vocab=30))
    sample = build.rollout()
    sample = replace(sample, completion_ids=sample.completion_ids % 30)
    p = next_token_logprobs(full, sample, 1.0)[:, :30].log_softmax(-1)
    look = short(sample)
    token = sample.completion_ids[sample.mask][:, None]
    torch.testing.assert_close(
        look.logprobs[sample.mask], p.gather(1, token)[:, 0], rtol=tolerances.EXACT, atol=tolerances.EXACT
    )


def test_a_rollout_in_which_nothing_counts() -> None:
    policy, sample = build.policy(), build.rollout()
    sample.mask[:] = False
    look = policy(sample)
    look.logprobs.sum().backward()
    assert look.logprobs.shape == sample.mask.shape
    assert not look.logprobs.any()


def test_the_tied_head_is_trained_through_both_its_uses() -> None:
    policy, sample = build.policy("llama", torch.float64), build.rollout()
    assert policy.head().weight is policy.causal.get_input_embeddings().weight
    absent = sorted(set(range(build.VOCAB)) - set(sample.prompt_ids.flatten().tolist()))
    never = [v for v in absent if v not in sample.completion_ids.flatten().tolist()]
    policy(sample).logprobs.sum().backward()
    grad = policy.head().weight.grad
    assert grad is not None
    assert never == [] or grad[never].abs().min() > 0  # a token never fed still moves, as one that was not sampled


def test_bf16_computes_in_bf16_over_fp32_weights() -> None:
    exact = build.policy("llama", initializer_range=0.1)
    policy = Policy(exact.model, exact.recipe, compute=torch.bfloat16)
    sample = build.rollout()
    look, truth = policy(sample), exact(sample)
    error = (look.logprobs - truth.logprobs).abs().max()
    assert 0 < error < 0.1  # rounding of another precision, and no more
    look.logprobs.sum().backward()
    assert {p.grad.dtype for p in policy.trainable() if p.grad is not None} == {torch.float32}


def test_pure_half_precision_training_is_refused_and_an_adapter_on_it_is_not() -> None:
    policy = build.policy("llama", torch.bfloat16)
    with pytest.raises(UsageError, match="lost to rounding"):
        policy.trainable()
    adapted = Policy(adapters.attach(policy.model, Adapter(rank=2), "base", seed=0), policy.recipe)
    assert {p.dtype for p in adapted.trainable()} == {torch.float32}


def test_saving_an_adapter_saves_that_adapter_alone(tmp_path: Path) -> None:
    policy = build.policy()
    adapted = Policy(adapters.attach(policy.model, Adapter(rank=2), "some/base", seed=0), policy.recipe)
    adapters.snapshot(adapted.model)
    adapted.save(tmp_path, build.tokenizer())
    found = {file.name for file in tmp_path.rglob("*") if file.suffix == ".safetensors"}
    assert found == {"adapter_model.safetensors"}
    assert adapters.recorded_base(tmp_path) == "some/base"
