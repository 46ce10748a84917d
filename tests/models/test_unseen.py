"""What nobody has seen: architectures with code of their own, adapters in odd places, prompts of odd lengths."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.models import build, odd
from tests.tolerances import PATHS
from tests.training.small import settings, steps
from tools.zoo import measure

from kleash.errors import RunError, UsageError
from kleash.models.load import load
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import Adapter, ModelSpec
from kleash.training.api import start
from kleash.training.toml import parse_config

# ── architectures ───────────────────────────────────────────────────────────────────────────────────────


def test_a_model_with_code_of_its_own_trains_once_that_is_trusted(tmp_path: Path) -> None:
    """It takes no position_ids and calls its cache past_key_values; a block mask is beyond it."""
    model = odd.write(tmp_path / "odd")
    with pytest.raises(UsageError, match=r"code of its own.*model\.trust_remote_code = true"):
        load(ModelSpec(str(model)))
    loaded = load(ModelSpec(str(model), trust_remote_code=True))
    assert loaded.paths == ("cached", "two_stage", "plain")
    sampled = measure.rollout()
    for path in loaded.paths:
        seen = loaded.policy(sampled, path=path).logprobs[sampled.mask]
        torch.testing.assert_close(seen, measure.truth(loaded.policy, sampled), rtol=PATHS, atol=PATHS)
    given: dict[str, Any] = {"model__policy": str(model), "model__trust_remote_code": True, "train__steps": 2}
    start(parse_config(settings(tmp_path, **given)))
    assert len(steps(tmp_path / "run")) == 3
    saved = max((tmp_path / "run/checkpoints").glob("step-*"))
    again = load(ModelSpec(str(saved), trust_remote_code=True)).policy
    assert not torch.equal(again.head().weight, loaded.policy.head().weight)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raises", "cannot run a row of 16 tokens: the flux is out of range"),
        ("no padding", "cannot run a padded row forwards and backwards: the flux has a hole"),
        ("sees padding", "gives other numbers for a padded row"),
        ("forgets", "cannot go on from a cache of its prompt, which sampling needs: the model kept 0 of 5 tokens"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_in_a_sentence(tmp_path: Path, fault: str, sentence: str) -> None:
    with pytest.raises(RunError, match=sentence):
        load(ModelSpec(str(odd.write(tmp_path / "odd", fault=fault)), trust_remote_code=True))


def test_activation_checkpointing_that_a_model_lacks_or_cannot_bear(tmp_path: Path) -> None:
    for fault, sentence in (("", "has no activation checkpointing"), ("noisy", "other numbers in training mode")):
        spec = ModelSpec(
            str(odd.write(tmp_path / f"odd-{fault}", fault=fault)), trust_remote_code=True, gradient_checkpointing=True
        )
        with pytest.raises(UsageError, match=rf"{sentence}.*model\.gradient_checkpointing = false"):
            load(spec)


def test_a_model_type_that_transformers_does_not_know(tmp_path: Path) -> None:
    model = build.checkpoint(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "llama99"}))
    with pytest.raises(RunError, match=r"could not be loaded: .*llama99"):
        load(ModelSpec(str(model)))


# ── adapters ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ["q_proj", "embed_tokens"]], ids=["head", "embeddings"])
def test_an_adapter_from_elsewhere_on_the_head_or_on_what_it_is_tied_to(tmp_path: Path, targets: list[str]) -> None:
    base = build.checkpoint(tmp_path / "base")  # tied
    with pytest.warns(UserWarning, match="tie_word_embeddings"):
        adapted = get_peft_model(build.model(), LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM"))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    build.tokenizer().save_pretrained(tmp_path / "adapter")
    with pytest.raises(RunError, match=r"out of the adapter's targets"):
        load(ModelSpec(str(tmp_path / "adapter")))
    with pytest.raises(RunError, match=r"out of the adapter's targets"):
        load(ModelSpec(str(base), adapter=Adapter(rank=2, targets=targets)))


def test_lora_under_a_tied_head_trains_and_leaves_both_ends_alone(tmp_path: Path) -> None:
    base = build.checkpoint(tmp_path / "base")
    start(parse_config(settings(tmp_path, model__policy=str(base), model__adapter={"rank": 2}, train__steps=2)))
    saved = load(ModelSpec(str(max((tmp_path / "run/checkpoints").glob("step-*"))))).policy
    before = load(ModelSpec(str(base))).policy
    assert saved.head().weight is saved.causal.get_input_embeddings().weight
    assert torch.equal(saved.head().weight, before.head().weight)
    sampled = measure.rollout()
    assert not torch.equal(saved.hidden(sampled), before.hidden(sampled))


# ── prompts ─────────────────────────────────────────────────────────────────────────────────────────────

#: Tokens of each prompt: one is longer than the rest together.
LENGTHS = (1, 3, 47, 2, 9)


@pytest.mark.parametrize("path", ["packed", "cached", "two_stage", "plain"])
def test_a_prompt_longer_than_the_rest_together(path: Any) -> None:
    policy = build.policy("mistral", sliding_window=3)
    sampled = build.rollout(LENGTHS, ((4, 1), (6, 2), (5,), (3, 3), (1, 7)))
    seen = policy(sampled, path=path).logprobs[sampled.mask]
    torch.testing.assert_close(seen, measure.truth(policy, sampled), rtol=PATHS, atol=PATHS)


def test_its_neighbours_are_sampled_as_without_it(tmp_path: Path) -> None:
    loaded = load(ModelSpec(str(build.checkpoint(tmp_path))))
    prompts = [[(7 * i + j) % build.VOCAB for j in range(n)] for i, n in enumerate(LENGTHS)]

    def drawn(index: list[int]) -> dict[int, list[list[int]]]:
        rollout = sample(
            loaded.policy,
            [prompts[i] for i in index],
            Sampling(max_new_tokens=8),
            loaded.ends,
            group_size=3,
            seed=1,
            step=0,
            prompt_index=index,
        )
        rows = [ids[mask].tolist() for ids, mask in zip(rollout.completion_ids, rollout.mask, strict=True)]
        return {i: rows[3 * at : 3 * at + 3] for at, i in enumerate(index)}

    together, alone = drawn([0, 1, 2, 3, 4]), drawn([0, 1, 3, 4])
    assert {i: together[i] for i in alone} == alone
    assert together[2] == drawn([2])[2]


def test_a_run_over_prompts_of_very_different_lengths(tmp_path: Path) -> None:
    given = settings(tmp_path, train__steps=2, train__prompts_per_step=len(LENGTHS))
    texts = [" ".join(f"t{3 + i * j % 7}" for j in range(n)) for i, n in enumerate(LENGTHS, 1)]
    Path(given["data"]["prompts"]).write_text("".join(text + "\n" for text in texts))
    start(parse_config(given))
    assert len(steps(tmp_path / "run")) == 3
