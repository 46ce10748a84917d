"""No dead knobs in `kleash reward`: each field of its own is turned, and something that is seen turns with it."""

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_every_field import TEMPLATE
from tests.training.test_reward import plain_records, settings, weights
from transformers import AutoTokenizer

from kleash.errors import UsageError
from kleash.models.fingerprint import tensors_digest
from kleash.training.offline.members import train_members
from kleash.training.offline.reward_config import BradleyTerry, RewardConfig, RewardData

SHORT = {"train__epochs": None, "train__steps": 4}
CHAT = {"data__chat": True, "model__policy": "chat"}
#: section → field → (what is turned, on top of what).
TURNS: dict[type, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    RewardData: {
        "pairs": ({"data__pairs": "other.jsonl"}, {}),
        "held_out": ({"data__held_out": "other.jsonl"}, {}),
        "chat": (CHAT, {"model__policy": "chat"}),
        "system": ({"data__system": "t9"}, CHAT),
        "bad_rows": ({"data__bad_rows": "refuse"}, {"data__pairs": "bad.jsonl", "data__bad_rows": "drop"}),
        "max_tokens": ({"data__max_tokens": 6}, {"data__bad_rows": "drop"}),
    },
    BradleyTerry: {
        "centre": ({"loss__centre": 0.5}, {}),
        "margin": ({"loss__margin": 0.0}, {}),
        "careless": ({"loss__careless": 0.3}, {}),
    },
}
#: Those of the whole config: sections of their own, or turned in tests/training/test_reward.py and test_boards.py.
ELSEWHERE = {"out", "model", "data", "loss", "train", "members", "log"}


@pytest.mark.parametrize("section", TURNS, ids=lambda section: section.__name__)
def test_every_field_is_turned(section):
    assert set(TURNS[section]) == {field.name for field in dataclasses.fields(section)}
    assert {field.name for field in dataclasses.fields(RewardConfig)} == ELSEWHERE


@pytest.mark.parametrize(
    ("section", "field"), [(section, field) for section, fields in TURNS.items() for field in fields], ids=str
)
def test_turning_it_turns_something(tmp_path, section, field):
    turned, base = TURNS[section][field]
    first = observed(tmp_path, "first", SHORT | base)
    assert observed(tmp_path, "second", SHORT | base | turned) != first


def observed(directory: Path, name: str, changes: dict[str, Any]) -> str:
    """Records, evaluations and the last weights of a run, or why there was none."""
    made = settings(directory)
    rows = (directory / "pairs.jsonl").read_text().splitlines()
    (directory / "other.jsonl").write_text("\n".join(rows[:8][::-1]) + "\n")
    (directory / "bad.jsonl").write_text(
        "\n".join([json.dumps(json.loads(rows[0]) | {"rejected": json.loads(rows[0])["chosen"]}), *rows]) + "\n"
    )
    if changes.get("model__policy") == "chat":
        tokenizer = AutoTokenizer.from_pretrained(made.model.policy)
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(made.model.policy)
    placed = {
        key: str(directory / value) if str(value).endswith(".jsonl") else value
        for key, value in changes.items()
        if key != "model__policy"
    }
    try:
        (run,) = train_members(settings(directory, out=str(directory / name), **placed)).members
    except UsageError as error:
        return str(error)
    evaluations = [asdict(e) | {"seconds": None} for e in run.evaluations]
    digest = tensors_digest(sorted(weights(run.checkpoints[-1].path).items()))
    return json.dumps([[asdict(record) for record in plain_records(run)], evaluations, digest], default=str)
