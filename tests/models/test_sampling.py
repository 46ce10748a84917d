"""The sampler against exact enumeration, and against a slow sampler without cache, batch or padding."""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from scipy import stats
from tests.models.small_tokenizers import TEXT, byte_level, metaspace
from tests.tolerances import EXACT, FP32, PATHS
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from kleash.errors import RunError, UsageError
from kleash.models.draw import NOISE_BITS, keyed_noise
from kleash.models.heads import Recipe
from kleash.models.policy import Policy
from kleash.models.sampling import Sampling, sample
from kleash.models.stopping import Ends, stopped
from kleash.tensors import Rollout

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.35,  # far from uniform
}
ENDS = Ends((2,), 2)  # pad is eos, as in SmolLM2
PROMPTS = [[5, 3, 8, 1, 9, 4, 7], [6], [11, 12, 3], [10, 10, 4, 1, 5]]
LEVEL = 1e-3


def llama(rows: int = 16, vocab: int = 14, dtype: torch.dtype = torch.float64, seed: int = 0) -> Policy:
    """A random model whose last vocabulary rows (from `vocab`) are beyond the tokenizer."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=rows, tie_word_embeddings=True, **SMALL))
    return Policy(model.to(dtype).eval(), Recipe(vocab))


def mistral() -> Policy:
    """A window shorter than the prompts, and no tied head."""
    torch.manual_seed(0)
    config = MistralConfig(vocab_size=16, sliding_window=4, tie_word_embeddings=False, head_dim=8, **SMALL)
    return Policy(MistralForCausalLM(config).double().eval(), Recipe(14))


def alternating() -> Policy:
    """A layer with a window, whose cache is its own, and one without."""
    torch.manual_seed(0)
    kinds = ["sliding_attention", "full_attention"]
    config = Qwen3Config(
        vocab_size=16, layer_types=kinds, sliding_window=4, use_sliding_window=True, head_dim=8, **SMALL
    )
    return Policy(Qwen3ForCausalLM(config).double().eval(), Recipe(14))


def draw_all(policy: Policy, settings: Sampling, ends: Ends = ENDS, index: tuple[int, ...] = (0, 1, 2, 3)) -> Rollout:
    prompts = [PROMPTS[i] for i in index]
    return sample(policy, prompts, settings, ends, group_size=6, seed=1, step=2, prompt_index=list(index))


def rows_of(rollout: Rollout) -> list[tuple[list[int], bool]]:
    """Counted tokens of each row, and whether it was cut."""
    rows = zip(rollout.completion_ids, rollout.mask, rollout.truncated, strict=True)
    return [(ids[mask].tolist(), bool(cut)) for ids, mask, cut in rows]


@torch.no_grad()
def log_policy(policy: Policy, prefix: list[int], temperature: float = 1.0) -> list[float]:
    """log π(·|prefix) by the model's own forward on one unpadded row, extra vocabulary rows cut off."""
    logits = policy.model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1, : policy.recipe.vocab]
    return (logits / temperature).log_softmax(-1).tolist()


def slow_row(policy: Policy, prompt: list[int], noise: list[int], s: Sampling, ends: Ends) -> tuple[list[int], bool]:
    """One completion, a whole forward for each token, plain Python for all the rest."""
    ids: list[int] = []
    for t in range(s.max_new_tokens):
        p = [math.exp(x) for x in log_policy(policy, prompt + ids, s.temperature)]
        if t < s.min_new_tokens:
            p = [0.0 if i in ends.eos_ids else x for i, x in enumerate(p)]
        ranked = sorted(range(len(p)), key=lambda i: -p[i])
        kept = ranked[: s.top_k] if s.top_k else ranked
        total, reached, nucleus = sum(p[i] for i in kept), 0.0, []
        for i in kept:
            if reached < s.top_p * total:
                nucleus.append(i)
            reached += p[i]
        total = sum(p[i] for i in nucleus)
        u, below = float(Fraction(noise[t], 1 << NOISE_BITS)) * total, 0.0
        for i in sorted(nucleus):
            below += p[i]
            if u < below:
                ids.append(i)
                break
        if ids[-1] in ends.eos_ids or any(word in ends.tokenizer.decode(ids) for word in s.stop):
            return ids, False
    return ids, True


def slow(policy: Policy, s: Sampling, ends: Ends) -> list[tuple[list[int], bool]]:
    noise = keyed_noise(1, 2, [0, 1, 2, 3], 6, s.max_new_tokens).tolist()
    return [slow_row(policy, PROMPTS[row // 6], noise[row], s, ends) for row in range(24)]


# ── what is drawn ───────────────────────────────────────────────────────────────────────────────────────

SETTINGS = [
    Sampling(max_new_tokens=12),
    Sampling(max_new_tokens=12, temperature=0.7),
    Sampling(max_new_tokens=12, temperature=1.6, min_new_tokens=3),
    Sampling(max_new_tokens=12, top_k=3),
    Sampling(max_new_tokens=12, top_p=0.7),
    Sampling(max_new_tokens=12, temperature=1.3, top_k=6, top_p=0.8, min_new_tokens=12),
    Sampling(max_new_tokens=1),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("ends", [ENDS, Ends((1, 4, 2), 0)], ids=["pad_is_eos", "three_eos"])
def test_equals_slow_sampler(settings: Sampling, ends: Ends) -> None:
    policy = llama()
    assert rows_of(draw_all(policy, settings, ends)) == slow(policy, settings, ends)


@pytest.mark.parametrize("make", [mistral, alternating])
def test_equals_slow_sampler_with_a_sliding_window(make: Callable[[], Policy]) -> None:
    policy, settings = make(), Sampling(max_new_tokens=12)
    assert rows_of(draw_all(policy, settings)) == slow(policy, settings, ENDS)


def test_distribution_equals_enumeration() -> None:
    """V = 5, T = 3, all 85 sequences that end or reach the limit, against their exact probabilities."""
    policy, prompt, n = llama(rows=8, vocab=5), [3, 1, 4], 40_000
    exact: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(5), repeat=3):
        end = ids.index(2) + 1 if 2 in ids else 3
        steps = [log_policy(policy, prompt + list(ids[:t]))[ids[t]] for t in range(end)]
        exact[ids[:end]] = math.exp(sum(steps))
    assert len(exact) == 1 + 4 + 16 * 5 and abs(sum(exact.values()) - 1) < EXACT
    rollout = sample(policy, [prompt], Sampling(max_new_tokens=3), ENDS, group_size=n, seed=0, step=0, prompt_index=[0])
    seen = Counter(tuple(ids) for ids, _ in rows_of(rollout))
    assert set(seen) <= set(exact)
    often = [ids for ids, p in exact.items() if n * p >= 5]
    rare = n - sum(n * exact[ids] for ids in often)
    observed = [seen[ids] for ids in often] + [n - sum(seen[ids] for ids in often)]
    expected = [n * exact[ids] for ids in often] + [rare]
    assert len(often) > 20
    assert stats.chisquare(observed, expected).pvalue > LEVEL


@pytest.mark.parametrize("settings", SETTINGS[:3])
def test_a_sample_does_not_depend_on_its_batch(settings: Sampling) -> None:
    """Four prompts together, one by one, and in another order (so with other padding and other dropped rows)."""
    policy = llama()
    together = rows_of(draw_all(policy, settings))
    alone = [row for i in range(4) for row in rows_of(draw_all(policy, settings, index=(i,)))]
    turned = rows_of(draw_all(policy, settings, index=(2, 0, 3, 1)))
    assert alone == together
    assert [turned[6 * (2, 0, 3, 1).index(row // 6) + row % 6] for row in range(24)] == together


def test_key_changes_the_sample() -> None:
    policy, settings = llama(), Sampling(max_new_tokens=12)
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    drawn = [
        rows_of(sample(policy, [[5]], settings, ENDS, group_size=6, seed=a, step=b, prompt_index=[c]))
        for a, b, c in keys
    ]
    rows = [str(row) for one in drawn for row in one]
    assert len(set(rows)) > len(rows) // 2
    assert all(a != b for a, b in itertools.combinations(drawn, 2))


def test_rows_beyond_the_tokenizer_are_never_drawn() -> None:
    policy = llama()
    with torch.no_grad():
        policy.causal.lm_head.weight[14:] *= 50
    rollout = draw_all(policy, Sampling(max_new_tokens=20))
    assert rollout.completion_ids.max() < 14


# ── what is written down ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, PATHS), (torch.float64, EXACT)])
def test_logprobs_equal_a_plain_forward(temperature: float, dtype: torch.dtype, tolerance: float) -> None:
    policy = llama(dtype=dtype)
    rollout = draw_all(policy, Sampling(max_new_tokens=10, temperature=temperature))
    assert rollout.sampler.dtype == dtype
    for row, (ids, _) in enumerate(rows_of(rollout)):
        prompt = PROMPTS[row // 6]
        expected = [log_policy(policy, prompt + ids[:t], temperature)[ids[t]] for t in range(len(ids))]
        ours = rollout.sampler[row, : len(ids)].double()
        torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)
    assert (rollout.sampler[~rollout.mask] == 0).all()


def test_logprobs_are_those_of_the_truncated_distribution() -> None:
    """top_k = 1 leaves one token: its log-prob under what was drawn from is 0."""
    rollout = draw_all(llama(), Sampling(max_new_tokens=6, top_k=1))
    assert (rollout.sampler == 0).all()


def test_mask_ends_with_the_sampled_end_token_though_it_is_the_padding() -> None:
    rollout = draw_all(llama(), Sampling(max_new_tokens=12))
    lengths = rollout.mask.sum(1)
    assert lengths.unique().numel() > 1 and rollout.truncated.any() and not rollout.truncated.all()
    for ids, mask, cut in zip(rollout.completion_ids, rollout.mask, rollout.truncated, strict=True):
        n = int(mask.sum())
        assert mask[:n].all() and not mask[n:].any()
        assert (ids[n:] == 2).all() and not (ids[: n - 1] == 2).any()
        assert bool(ids[n - 1] == 2) != bool(cut)
    assert rollout.completion_ids.shape[1] == int(lengths.max())
    assert rollout.group.tolist() == [n for n in range(4) for _ in range(6)]
    assert [ids[m].tolist() for ids, m in zip(rollout.prompt_ids, rollout.prompt_mask, strict=True)] == PROMPTS


def test_an_end_token_at_the_limit_is_no_truncation() -> None:
    rollout = draw_all(llama(), Sampling(max_new_tokens=1))
    assert torch.equal(rollout.truncated, rollout.completion_ids[:, 0] != 2)
    assert rollout.mask.all()


def test_completions_are_trimmed_to_the_longest() -> None:
    everything_ends = Ends(tuple(range(14)), 0)
    rollout = draw_all(llama(), Sampling(max_new_tokens=50), everything_ends)
    assert rollout.completion_ids.shape == (24, 1) and not rollout.truncated.any()


def test_min_new_tokens() -> None:
    rollout = draw_all(llama(), Sampling(max_new_tokens=9, min_new_tokens=4), Ends((1, 2), 0))
    assert (rollout.mask.sum(1) >= 5).all()
    assert not torch.isin(rollout.completion_ids[:, :4], torch.tensor([1, 2])).any()
    assert not rollout.truncated.all()


@pytest.mark.parametrize("stop", [("a",), ("the", "b"), ("é", "c d", "ab")])
def test_stop_strings(stop: tuple[str, ...]) -> None:
    """Stops with the first token that completes one in the text; the slow side decodes everything each time."""
    tokenizer = byte_level()
    alphabet = tokenizer.convert_tokens_to_ids([*"abcdet", "Ġ", "Ġthe", "Ã", "©", "</s>"])
    policy = llama(rows=len(tokenizer), vocab=len(tokenizer))
    with torch.no_grad():  # a head that says little but these
        policy.causal.lm_head.weight *= 0.1
        keep = torch.zeros(len(tokenizer), dtype=torch.float64).scatter(0, torch.tensor(alphabet), 8.0)
        policy.causal.lm_head.bias = torch.nn.Parameter(keep)
    ends, settings = Ends((1,), 2, tokenizer), Sampling(max_new_tokens=16, stop=stop)
    rollout = draw_all(policy, settings, ends)
    assert rows_of(rollout) == slow(policy, settings, ends)
    stopped = [any(s in tokenizer.decode(ids) for s in stop) for ids, _ in rows_of(rollout)]
    ended = [ids[-1] == 1 for ids, _ in rows_of(rollout)]
    assert any(stopped) and [not (s or e) for s, e in zip(stopped, ended, strict=True)] == rollout.truncated.tolist()


@pytest.mark.parametrize("tokenizer", [byte_level(), metaspace()], ids=["byte_level", "metaspace"])
@pytest.mark.parametrize("stop", [(" road; stop",), ("now, café!",), ("x", " cat sat"), (" the",), ("<pad>",)])
def test_the_tail_is_enough_to_find_a_stop_string(tokenizer: Any, stop: tuple[str, ...]) -> None:
    """At the first token with which the whole decoded text contains a stop string, and not before."""
    ids = tokenizer(TEXT + "<pad>", add_special_tokens=False)["input_ids"]
    rows = torch.tensor([ids, ids])
    seen = [stopped(rows[:, : t + 1], stop, tokenizer).tolist() for t in range(len(ids))]
    expected = [any(s in tokenizer.decode(ids[: t + 1]) for s in stop) for t in range(len(ids))]
    end = expected.index(True) + 1
    assert seen[:end] == [[e, e] for e in expected[:end]]


# ── how it runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_prompts_are_read_once_and_finished_rows_drop_out() -> None:
    policy, fed = llama(), []
    policy.body.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    rollout = draw_all(policy, Sampling(max_new_tokens=12))
    N, P, T = 4, 7, rollout.mask.shape[1]
    assert fed[0] == N * P and len(fed) == T
    assert sum(fed) <= N * P + 24 * (T - 1)
    assert all(idle <= n // 7 for n, idle in zip(fed[1:], idle_rows(rollout, fed), strict=True))
    assert fed[-1] < 24


def idle_rows(rollout: Rollout, fed: list[int]) -> list[int]:
    """Rows fed at each step though they had ended."""
    return [n - int(rollout.mask[:, t].sum()) for t, n in enumerate(fed[1:], start=1)]


def test_training_mode_and_checkpointing_change_nothing() -> None:
    policy, settings = llama(), Sampling(max_new_tokens=12)
    expected = rows_of(draw_all(policy, settings))
    policy.causal.activation_checkpointing_enable()
    policy.train()
    assert rows_of(draw_all(policy, settings)) == expected
    assert policy.training and all(module.training for module in policy.modules())


def test_no_gradient_and_no_inference_tensor() -> None:
    rollout = draw_all(llama(), Sampling(max_new_tokens=3))
    assert not rollout.sampler.requires_grad
    assert not rollout.sampler.is_inference() and not rollout.completion_ids.is_inference()


def test_generation_config_is_not_inherited() -> None:
    policy, settings = llama(), Sampling(max_new_tokens=8)
    expected = rows_of(draw_all(policy, settings))
    policy.causal.generation_config.update(temperature=0.01, top_k=1, top_p=0.1, do_sample=False, max_new_tokens=2)
    assert rows_of(draw_all(policy, settings)) == expected


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_bfloat16_writes_fp32_logprobs(stored: torch.dtype) -> None:
    """The head's product and the softmax are never in half precision, not even where the caller's autocast is on."""
    compute = torch.bfloat16 if stored == torch.float32 else None
    policy, settings = Policy(llama(dtype=stored).model, Recipe(14), compute=compute), Sampling(max_new_tokens=6)
    rollout = draw_all(policy, settings)
    assert rollout.sampler.dtype == torch.float32
    with policy.autocast():
        assert torch.equal(draw_all(policy, settings).sampler, rollout.sampler)


@pytest.mark.parametrize("compute", [None, torch.bfloat16])
def test_bfloat16_logprobs_are_a_distribution_s(compute: torch.dtype | None) -> None:
    """Log-probs of all first tokens, told apart by drawing many: they sum to 1 as fp32 does, not as bf16."""
    policy = Policy(llama(dtype=torch.float32 if compute else torch.bfloat16).model, Recipe(14), compute=compute)
    with policy.autocast():
        rollout = sample(
            policy,
            [[5, 3]],
            Sampling(max_new_tokens=1, temperature=4.0),
            ENDS,
            group_size=4000,
            seed=0,
            step=0,
            prompt_index=[0],
        )
    first = dict(zip(rollout.completion_ids[:, 0].tolist(), rollout.sampler[:, 0].tolist(), strict=True))
    assert len(first) == 14
    assert math.isclose(sum(map(math.exp, first.values())), 1, abs_tol=FP32)


# ── settings and refusals ───────────────────────────────────────────────────────────────────────────────


def test_mismatch_names_what_truncates() -> None:
    assert Sampling(temperature=0.7, stop=("x",), max_new_tokens=4).mismatch is None
    text = Sampling(top_k=20, top_p=0.9).mismatch
    assert text is not None and "top_k = 20 and top_p = 0.9" in text
    assert "min_new_tokens = 3" in (Sampling(min_new_tokens=3).mismatch or "")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": math.nan}, "temperature must be above 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"max_new_tokens": 4, "min_new_tokens": 5}, "min_new_tokens must lie between 0 and max_new_tokens"),
        ({"top_p": 0.0}, "top_p must lie in"),
        ({"top_p": 1.1}, "top_p must lie in"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"stop": ("",)}, "stop must be a list of non-empty strings"),
    ],
)
def test_settings_are_refused_with_a_sentence(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        replace(Sampling(), **wrong)


def test_requests_are_refused_with_a_sentence() -> None:
    policy, key = llama(), {"group_size": 2, "seed": 0, "step": 0}
    with pytest.raises(UsageError, match="prompt 8 has no tokens"):
        sample(policy, [[3], []], Sampling(), ENDS, prompt_index=[7, 8], **key)
    with pytest.raises(UsageError, match="prompt_index repeats"):
        sample(policy, [[3], [4]], Sampling(), ENDS, prompt_index=[7, 7], **key)
    with pytest.raises(UsageError, match="nothing to sample"):
        sample(policy, [], Sampling(), ENDS, prompt_index=[], **key)
    with pytest.raises(UsageError, match="give `ends` a tokenizer"):
        sample(policy, [[3]], Sampling(stop=("x",)), ENDS, prompt_index=[0], **key)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_stop_the_run(bad: float) -> None:
    policy = llama()
    with torch.no_grad():
        policy.causal.model.norm.weight[0] = bad
    with pytest.raises(RunError, match="not finite"):
        draw_all(policy, Sampling())


def test_ends_of_a_tokenizer_and_a_model() -> None:
    policy, tokenizer = llama(), byte_level()
    policy.causal.generation_config.eos_token_id = [7, 1]
    assert Ends.of(tokenizer, policy.causal.generation_config) == Ends((1, 7), 2, tokenizer)
    unpadded = byte_level(pad=None)
    assert Ends.of(unpadded).pad_id == 1
    unpadded.eos_token = None
    with pytest.raises(UsageError, match="no end token is known"):
        Ends.of(unpadded)
