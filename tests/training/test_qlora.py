"""Training over a base in few bits: held, resumed bit for bit, and the same for every verb that trains adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.leash import held
from tests.models import build
from tests.models.test_reference import move
from tests.tolerances import PATHS
from tests.training import pair_runs
from tests.training.small import settings

from kleash.errors import RunError, UsageError
from kleash.models.load import load
from kleash.models.quantised import quantised_layers
from kleash.models.scorer import as_rollout
from kleash.models.scorer_load import load_scorer
from kleash.models.spec import Adapter, ModelSpec
from kleash.training import checkpoint
from kleash.training.api import start
from kleash.training.offline.dpo_setup import build_dpo
from kleash.training.offline.reward_config import RewardConfig
from kleash.training.offline.reward_setup import build_reward
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.toml import parse, parse_config

pytest.importorskip("torchao")
QLORA: dict[str, Any] = {"model__adapter": {"rank": 4}, "model__quantize": "4bit"}


def test_a_target_is_held_from_a_kl_of_exactly_0(tmp_path: Path) -> None:
    config = settings(
        tmp_path, **QLORA, train__learning_rate=1e-2, train__steps=75, train__checkpoint_every=75,
        train__prompts_per_step=6, algorithm__group_size=8,
    )  # fmt: skip
    run = start(parse_config(config | {"rewards": [{"use": f"{tmp_path / 'rewards.py'}:even"}]}))
    assert run.steps[0].kl_ref is not None
    assert run.steps[0].kl_ref.value == 0
    (found,) = held(run.steps)
    assert found.good, found
    assert run.steps[-1].score > run.steps[0].score
    saved = sorted(file.name for file in (tmp_path / "run" / "best").iterdir())
    assert "adapter_model.safetensors" in saved
    assert "model.safetensors" not in saved


def test_another_quantisation_is_another_reference(tmp_path: Path) -> None:
    start(parse_config(settings(tmp_path, **QLORA, train__steps=2)))
    plain = {"model__adapter": {"rank": 4}}
    with pytest.raises(RunError, match=r"the quantisation changed: torchao NF4, .* before, none now"):
        start(parse_config(settings(tmp_path, **plain)), resume=True)


@pytest.mark.parametrize("kind", [{"dora": True}, {"rslora": True}])
def test_an_adapter_of_another_kind_is_not_gone_on_with(tmp_path: Path, kind: dict[str, Any]) -> None:
    own = load(ModelSpec(str(settings(tmp_path)["model"]["policy"]), adapter=Adapter(rank=2, **kind)))
    own.policy.save(tmp_path / "saved", own.tokenizer)
    load(ModelSpec(str(tmp_path / "saved"), adapter=Adapter(rank=2, **kind)))
    with pytest.raises(UsageError, match=r"rank 2 and alpha 2, (DoRA|rsLoRA), and .* rank 2 and alpha 2; leave"):
        load(ModelSpec(str(tmp_path / "saved"), adapter=Adapter(rank=2)))


def test_dpo(tmp_path: Path) -> None:
    run = run_offline(pair_runs.settings(tmp_path, **QLORA, train__epochs=1), build_dpo)
    assert pair_runs.steps(run)[0].kl_text == 0
    assert (run.path / "checkpoints").is_dir()


def test_sft(tmp_path: Path) -> None:
    tree = settings(tmp_path)
    rows = tmp_path / "texts.jsonl"
    rows.write_text("".join(json.dumps({"text": f"t{3 + i % 9} t{4 + i % 7} t5"}) + "\n" for i in range(16)))
    config = {
        "out": str(tmp_path / "sft"),
        "model": {"policy": tree["model"]["policy"], "adapter": {"rank": 4}, "quantize": "4bit"},
        "data": {"texts": str(rows)},
        "train": {"epochs": 4, "batch_size": 8, "learning_rate": 1e-2},
    }
    run = run_offline(parse(config, SFTConfig), build_sft)
    assert run.steps[-1].loss < run.steps[0].loss


def test_a_reward_model_begins_as_the_policy_that_was_trained(tmp_path: Path) -> None:
    """Its states are those of the adapter over the very numbers in 4 bits, not over the base as it is stored."""
    own = load(ModelSpec(settings(tmp_path)["model"]["policy"], adapter=Adapter(rank=2), quantize="4bit"))
    move(own.policy)
    own.policy.save(tmp_path / "saved", own.tokenizer)
    made = load_scorer(ModelSpec(str(tmp_path / "saved")))
    rollout = build.rollout()
    with torch.no_grad():
        assert (own.policy.hidden(rollout) - made.scorer.trunk.hidden(rollout)).abs().max() < PATHS


def test_a_reward_model_is_saved_whole_and_scores_as_it_was_trained(tmp_path: Path) -> None:
    """The classifier that others load holds the unpacked weights, the adapter (DoRA) merged into them."""
    made = pair_runs.settings(tmp_path)
    config = {
        "out": str(tmp_path / "rm"),
        "model": {"policy": made.model.policy, "adapter": {"rank": 4, "dora": True}, "quantize": "4bit"},
        "data": {"pairs": made.data.pairs},
        "train": {"epochs": 2, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 3},
    }
    parsed = parse(config, RewardConfig)
    run = run_offline(parsed, build_reward)
    saved, _ = checkpoint.newest(run.path / "checkpoints")
    assert saved is not None
    whole = load_scorer(ModelSpec(str(saved)))
    own = load_scorer(parsed.model).scorer
    own.take(saved)
    assert quantised_layers(own)
    assert not quantised_layers(whole.scorer)
    rollout = as_rollout([([3, 4, 5, 6], [3, 4, 9])], whole.loaded.ends.pad_id, "cpu")
    with torch.no_grad():
        ours, theirs = own(rollout), whole.scorer(rollout)
    assert (ours - theirs).abs().max() < PATHS
