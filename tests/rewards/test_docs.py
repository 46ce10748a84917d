"""What docs/rewards.md shows works, and it names every key and every built-in reward."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path

from pydantic import TypeAdapter

from kleash.rewards import RewardSpec, load_rewards
from kleash.rewards.load import BUILTIN
from kleash.rewards.score import score

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_code_and_the_config_shown_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text(blocks("python")[0])
    before_shapes = [block for block in blocks("toml") if "shape" not in block and "model:" not in block]
    tables = [table for block in before_shapes for table in tomllib.loads(block)["rewards"]]
    specs = TypeAdapter(list[RewardSpec]).validate_python([*tables, {"use": "./reward.py:answers_in_turn"}])
    columns = {"wanted_words": [2, 2], "solution": ["3", None]}
    scored = score(load_rewards(specs), ["a", "b"], ["Yes please 3.001", "no"], columns)
    assert scored.by_name == {
        "polite": [1.0, 0.0],
        "length": [-1.0, -1.0],
        "numeric": [1.0, None],
        "regex": [1.0, 1.0],
        "answers_in_turn": [1.0, 1.0],
    }
    assert scored.total == [1.0 - 0.1 + 1.0 + 1.0 + 1.0, None]


def test_every_key_and_built_in_is_named():
    for field in fields(RewardSpec):
        assert f"| `{field.name}` |" in PAGE
    for name in BUILTIN:
        assert f'| `"{name}"` |' in PAGE
