"""No dead knobs in `kleash sft`: each field is turned, and something that can be observed turns with it."""

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_every_field import TEMPLATE
from tests.training.test_sft import plain_records, settings, weights
from transformers import AutoTokenizer

from kleash.models.fingerprint import tensors_digest
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft_config import SFTKL, SFTData
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.offline.train_config import OfflineTrain

SHORT = {"train__epochs": None, "train__steps": 4, "train__checkpoint_every": 2}
CHAT = {"data__chat": True, "model__policy": "chat"}
#: section → field → (what is turned, on top of what).
TURNS: dict[type, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    SFTData: {
        "texts": ({"data__texts": "other.jsonl"}, {}),
        "held_out": ({"data__held_out": "other.jsonl"}, {}),
        "chat": (CHAT, {"model__policy": "chat"}),
        "system": ({"data__system": "t9"}, CHAT),
        "template": ({"data__template": {"short": True}}, CHAT),
        "max_tokens": ({"data__max_tokens": 4}, {}),
    },
    SFTKL: {
        "measure": ({"kl__measure": False}, {}),
        "prompts": ({"kl__prompts": 1}, {}),
        "max_new_tokens": ({"kl__max_new_tokens": 3}, {}),
    },
    OfflineTrain: {
        "epochs": ({"train__steps": None, "train__epochs": 1}, {}),
        "steps": ({"train__steps": 5}, {}),
        "batch_size": ({"train__batch_size": 3}, {}),
        "groups_per_pass": ({"train__groups_per_pass": 1}, {}),
        "learning_rate": ({"train__learning_rate": 2e-2}, {}),
        "decay": ({"train__decay": "linear"}, {}),
        "warmup_updates": ({"train__warmup_updates": 2}, {}),
        "adam_betas": ({"train__adam_betas": [0.5, 0.6]}, {}),
        "weight_decay": ({"train__weight_decay": 1.0}, {}),
        "max_grad_norm": ({"train__max_grad_norm": 1e-8}, {}),
        "checkpoint_every": ({"train__checkpoint_every": 4}, {}),
        "keep": ({"train__keep": 1}, {"train__checkpoint_every": 1}),
        "evaluate_every": ({"train__evaluate_every": 1}, {}),
        "seed": ({"train__seed": 1}, {}),
    },
}


@pytest.mark.parametrize("section", TURNS, ids=lambda section: section.__name__)
def test_every_field_is_turned(section):
    assert set(TURNS[section]) == {field.name for field in dataclasses.fields(section)}


@pytest.mark.parametrize(
    ("section", "field"), [(section, field) for section, fields in TURNS.items() for field in fields], ids=str
)
def test_turning_it_turns_something(tmp_path, section, field):
    turned, base = TURNS[section][field]
    first = observed(tmp_path, "first", SHORT | base)
    assert observed(tmp_path, "second", SHORT | base | turned) != first


def observed(directory: Path, name: str, changes: dict[str, Any]) -> Any:
    """All that a run leaves behind but its clock: records, evaluations, checkpoints, the last weights, the plan."""
    made = settings(directory)
    rows = (directory / "texts.jsonl").read_text().splitlines()
    (directory / "other.jsonl").write_text("\n".join(rows[:8][::-1]) + "\n")
    if changes.get("model__policy") == "chat":
        tokenizer = AutoTokenizer.from_pretrained(made.model.policy)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(made.model.policy)
    placed = {
        key: str(directory / value) if str(value).endswith(".jsonl") else value
        for key, value in changes.items()
        if key != "model__policy"
    }
    run = run_offline(settings(directory, out=str(directory / name), **placed), build_sft)
    evaluations = [asdict(e) | {"seconds": None} for e in run.evaluations]
    names = [saved.path.name for saved in run.checkpoints]
    digest = tensors_digest(sorted(weights(run.checkpoints[-1].path).items()))
    return json.dumps([[asdict(r) for r in plain_records(run)], evaluations, names, digest, _passes(run)], default=str)


def _passes(run: OfflineRun) -> Any:
    """How rows went through the model: what groups_per_pass changes, numbers being the same but for rounding."""
    start = run.events[0]
    return start.plan["work"]["asked"] if hasattr(start, "plan") else None  # pyright: ignore[reportAttributeAccessIssue]
