"""`kleash new`: what it knows of a model that it did not load, what it chooses, and that its text is a config."""

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.small import settings
from torch import nn

from kleash.errors import UsageError
from kleash.models.catalog import resolve
from kleash.models.load import load
from kleash.models.quantised import quantised_layers
from kleash.models.spec import Adapter, ModelSpec
from kleash.models.unloaded import look
from kleash.training import starting
from kleash.training.data import read_prompts
from kleash.training.offline.dpo_config import DPOConfig
from kleash.training.prompt_files import read_rows
from kleash.training.setup import build_job
from kleash.training.starter import Wishes
from kleash.training.suggest import RANK, Machine, faster, step_bytes, suggest
from kleash.training.toml import load as load_toml
from kleash.training.toml import load_config, parse_config
from kleash.training.trial import tried

TINY = look("kleash:tiny")
LARGE = replace(
    TINY,
    parameters=7_600_000_000,
    linear=6_500_000_000,
    ends=4_000_000,
    layers=28,
    hidden=3584,
    inner=18944,
    vocab=152_064,
)  # fmt: skip
#: A machine with any memory; fast enough that only memory decides.
FAST = Machine(gpu=False, free=None, flops=1e15)


def test_the_sizes_are_those_of_the_loaded_model() -> None:
    loaded = load(ModelSpec(policy="kleash:tiny", adapter=Adapter(rank=3)))
    adapter = sum(p.numel() for p in loaded.policy.trainable())
    base = sum(p.numel() for p in loaded.policy.parameters()) - adapter
    assert TINY.parameters == base
    assert 3 * TINY.ends == adapter
    packed = load(ModelSpec(policy="kleash:tiny", adapter=Adapter(rank=3), quantize="4bit")).policy
    assert TINY.linear == sum(q.in_features * q.out_features for q in quantised_layers(packed))
    assert (TINY.context, TINY.chat) == (loaded.context, bool(loaded.tokenizer.chat_template))
    linear = [m for m in loaded.policy.body.modules() if isinstance(m, nn.Linear)]
    assert {TINY.hidden, TINY.inner} <= {size for m in linear for size in (m.in_features, m.out_features)}


def test_an_adapter_is_seen_to_be_one(tmp_path: Path) -> None:
    loaded = load(ModelSpec(policy="kleash:tiny", adapter=Adapter(rank=2)))
    loaded.policy.save(tmp_path / "adapter", loaded.tokenizer)
    found = look(str(tmp_path / "adapter"))
    assert found == replace(TINY, adapter=True)
    text, _ = starting.new(Wishes(kind="grpo", model=str(tmp_path / "adapter")))
    assert "adapter" not in tomllib.loads(text)["model"]


def test_less_is_trained_as_memory_shrinks() -> None:
    free = [400e9, 100e9, 60e9, 30e9, 26e9, 4e9]
    chosen = [suggest(LARGE, replace(FAST, free=int(size))) for size in free]
    ways = [(s.adapter, s.bf16, s.checkpointing, s.quantised) for s in chosen if s.fits]
    assert ways == sorted(ways)
    assert ways[0] == (False, False, False, False)
    assert {(True, False, False, False), (True, True, False, False)} <= set(ways)
    on_gpu = suggest(LARGE, Machine(gpu=True, free=int(24e9), flops=1e15))
    assert (on_gpu.quantised, on_gpu.fits) == (True, True)
    assert not suggest(LARGE, replace(FAST, free=int(24e9))).fits  # a CPU has to read it first
    assert not chosen[-1].fits
    assert all(s.size <= 0.6 * size for s, size in zip(chosen, free, strict=True) if s.fits)


def test_weights_are_counted_as_they_are_held() -> None:
    """fp32 weight, gradient and two moments, and a frozen copy; with an adapter the base once in bf16."""
    start = suggest(TINY, FAST)
    one = replace(start, group=1, tokens=1)
    more = replace(TINY, parameters=TINY.parameters + 1_000_000)
    assert step_bytes(more, one, 1) - step_bytes(TINY, one, 1) == 20 * 1_000_000
    lora = replace(one, adapter=True, bf16=True)
    assert step_bytes(more, lora, 1) - step_bytes(TINY, lora, 1) == 2 * 1_000_000
    few, layers = replace(lora, quantised=True), replace(more, linear=TINY.linear + 1_000_000)
    assert step_bytes(layers, few, 1) - step_bytes(TINY, few, 1) == 520_000
    wider = replace(TINY, ends=TINY.ends + 1000)
    assert step_bytes(wider, lora, 1) - step_bytes(TINY, lora, 1) == 16 * RANK * 1000


def test_a_slow_machine_gets_a_smaller_step() -> None:
    slow, fast = suggest(TINY, replace(FAST, flops=1e8)), suggest(TINY, FAST)
    assert slow.prompts * slow.group * slow.tokens < fast.prompts * fast.group * fast.tokens


@pytest.mark.parametrize("kind", ["grpo", "ppo", "rlaif"])
def test_the_text_is_a_config_with_the_values_chosen(kind, tmp_path: Path) -> None:
    data = tmp_path / "prompts.txt"
    data.write_text("The soup\nThe hotel\n")
    reward = None if kind == "rlaif" else "vader"
    wishes = Wishes(kind=kind, model="kleash:tiny", data=str(data), held_out=str(data), reward=reward, out="runs/x y")
    text, lines = starting.new(wishes)
    assert len(text.splitlines()) <= 30
    (tmp_path / "run.toml").write_text(text)
    config = load_config(tmp_path / "run.toml", [])
    assert (config.out, config.model.policy, config.data.held_out) == ("runs/x y", "kleash:tiny", str(data))
    assert config.algorithm.kind == ("ppo" if kind == "ppo" else "grpo")
    assert config.rewards[0].use == ("judge:kleash:tiny" if kind == "rlaif" else "vader")
    chosen = f"{config.train.prompts_per_step} prompts × {config.algorithm.group_size} answers"
    assert any(chosen in line for line in lines)


def test_a_step_takes_no_more_prompts_than_there_are(tmp_path: Path) -> None:
    data = tmp_path / "prompts.txt"
    data.write_text("one\ntwo\nthree\n")
    text, lines = starting.new(Wishes(kind="grpo", model="kleash:tiny", data=str(data)))
    assert tomllib.loads(text)["train"]["prompts_per_step"] == 3
    assert any("3 prompts × 8 answers" in line for line in lines)


def test_a_small_model_starts_at_a_rate_like_those_that_held(tmp_path: Path) -> None:
    """A quarter to all of those of recipes/ and docs/runs/leash-family.md, for models of their sizes."""
    for parameters, adapter, default, held in (
        (TINY.parameters, False, 1e-5, 1e-3),
        (TINY.parameters, True, 1e-4, 3e-3),
        (135_000_000, False, 1e-5, 5e-5),
        (135_000_000, True, 1e-4, 5e-4),
    ):
        assert held / 4 <= default * faster(parameters, adapter) <= held
    assert faster(7_000_000_000, False) == 1
    text, _ = starting.new(Wishes(kind="grpo", model="kleash:tiny"))
    assert tomllib.loads(text)["train"]["learning_rate"] == 3e-4


def test_the_text_for_pairs_is_one_too(tmp_path: Path) -> None:
    text, _ = starting.new(Wishes(kind="dpo", model="kleash:tiny", data="recipes/tiny_pairs.jsonl"))
    (tmp_path / "run.toml").write_text(text)
    config = load_toml(tmp_path / "run.toml", [], DPOConfig)
    assert (config.model.policy, config.loss.kind, config.data.chat) == ("kleash:tiny", "dpo", False)
    assert len(read_rows(config.data.pairs)) > 0


def test_without_a_model_it_says_so_and_asks_texts_as_a_user(tmp_path: Path) -> None:
    text, lines = starting.new(Wishes(kind="grpo"))
    assert tomllib.loads(text)["data"]["chat"] is True
    assert tomllib.loads(text)["model"]["policy"] == "./my-model"
    assert "stands for yours" in lines[0]


def test_a_model_of_the_placeholders_name_is_looked_at(monkeypatch, tmp_path: Path) -> None:
    shutil.copytree(resolve("kleash:tiny"), tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    _, lines = starting.new(Wishes(kind="grpo", model="./my-model"))
    assert "1 million parameters" in lines[0]


def test_conversations_are_not_asked_twice(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(starting, "look", lambda name: replace(TINY, chat=True))
    rows = tmp_path / "prompts.jsonl"
    for prompt, chat in (('"Hello"', True), ('[{"role": "user", "content": "Hello"}]', False)):
        rows.write_text(f'{{"prompt": {prompt}}}\n')
        text, _ = starting.new(Wishes(kind="grpo", model="kleash:tiny", data=str(rows)))
        assert tomllib.loads(text)["data"].get("chat", False) is chat


@pytest.mark.parametrize("kind", ["grpo", "ppo", "rlaif"])
def test_where_memory_does_not_suffice_the_base_is_in_four_bits(kind, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(starting, "look", lambda name: replace(LARGE, chat=True))
    monkeypatch.setattr(starting, "this_machine", lambda: Machine(gpu=True, free=int(24e9), flops=1e15))
    (tmp_path / "p.txt").write_text("one\ntwo\n")
    held = str(tmp_path / "p.txt")
    text, lines = starting.new(Wishes(kind=kind, model="kleash:tiny", data=held, held_out=held))
    assert tomllib.loads(text)["model"]["quantize"] == "4bit"
    assert len(text.splitlines()) <= 30
    assert any("the base in 4 bits" in line for line in lines)


def test_conversations_need_a_chat_template(tmp_path: Path) -> None:
    rows = tmp_path / "prompts.jsonl"
    rows.write_text('{"prompt": [{"role": "user", "content": "Hello"}]}\n')
    with pytest.raises(UsageError, match="the tokenizer of kleash:tiny has no chat template; give prompts as text"):
        starting.new(Wishes(kind="grpo", model="kleash:tiny", data=str(rows)))


def test_what_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="no directory"):
        starting.new(Wishes(kind="grpo", model="./nowhere"))
    with pytest.raises(UsageError, match="no prompt file"):
        starting.new(Wishes(kind="grpo", model="kleash:tiny", data="nowhere.jsonl"))


def test_trial_steps_change_no_weight_and_leave_no_record(tmp_path: Path) -> None:
    config = parse_config(settings(tmp_path))
    rows = read_prompts(config.data.prompts, config.data.column)
    job = build_job(config, rows, config.rewards, None)
    before = {name: p.detach().clone() for name, p in job.loaded.policy.named_parameters()}
    said = tried(job)
    assert all(torch.equal(before[name], p) for name, p in job.loaded.policy.named_parameters())
    assert not list((tmp_path / "run").glob("**/*"))
    assert "two trial steps" in said[0]
    assert f"for {job.config.train.steps} steps" in said[1]
