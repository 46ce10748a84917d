"""A thousand broken configs: each ends in one sentence, or was not broken after all. Never a traceback."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kleash.errors import KleashError, UsageError
from kleash.training.config import Config
from kleash.training.offline.dpo_config import DPOConfig
from kleash.training.offline.reward_config import RewardConfig
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.toml import load, parse, with_overrides

RECIPES = Path(__file__).parents[2] / "recipes"
STARTS: dict[str, tuple[type, dict[str, Any]]] = {
    path.stem: (kind, tomllib.loads(path.read_text()))
    for kind, names in {
        Config: ("own_grpo", "tiny_ppo", "tiny_entropy", "tiny_ema", "rlaif", "instructgpt"),
        DPOConfig: ("tiny_dpo",),
        SFTConfig: ("tiny_sft",),
        RewardConfig: ("tiny_reward",),
    }.items()
    for path in (RECIPES / f"{name}.toml" for name in names)
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
    st.sampled_from(
        ["4 nats", "4 nats/sequence", "-1 nats/token", "nan nats/token", "∞", "./x.py:f", "\x00", "a\nb", "💥"]
    ),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of a tree, tables and their members alike."""
    found: list[tuple[Any, ...]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else []
    for key, value in items:
        found += [(*path, key), *places(value, (*path, key))]
    return found


@st.composite
def broken(draw: Any) -> tuple[type, dict[str, Any]]:
    kind, start = STARTS[draw(st.sampled_from(sorted(STARTS)))]
    tree = copy.deepcopy(start)
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(places(tree)))
        node = tree
        for key in where[:-1]:
            node = node[key]
        match draw(st.sampled_from(["replace", "drop", "rename", "add"])):
            case "replace":
                node[where[-1]] = draw(JUNK)
            case "drop":
                del node[where[-1]]
            case "rename" if isinstance(node, dict):
                node[f"{where[-1]}x"] = node.pop(where[-1])
            case "add" if isinstance(node, dict):
                node[draw(st.text(max_size=6))] = draw(JUNK)
            case _:
                node[where[-1]] = draw(JUNK)
        if not places(tree):
            break
    return kind, tree


def is_a_sentence(error: KleashError) -> None:
    said = str(error)
    assert said.strip()
    assert "\n" not in said, said
    assert "pydantic" not in said.lower()
    assert "object at 0x" not in said


@pytest.mark.parametrize("table", ["", "algorithm", "model", "kl"])
@pytest.mark.parametrize("key", ["[", "list[str]", "str", "int", "ppo", "grpo", "Config", "Adapter", "PPO", "", "."])
def test_an_unknown_key_is_named_whatever_it_is_called(table: str, key: str) -> None:
    tree = copy.deepcopy(STARTS["own_grpo"][1])
    (tree.setdefault(table, {}) if table else tree)[key] = 1
    with pytest.raises(UsageError, match="unknown key") as refused:
        parse(tree, STARTS["own_grpo"][0])
    is_a_sentence(refused.value)
    assert f"{table}.{key}" if table else key in str(refused.value)


@settings(max_examples=1000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(broken())
def test_a_broken_config_ends_in_a_sentence(case) -> None:
    kind, tree = case
    try:
        parse(tree, kind)
    except UsageError as error:
        is_a_sentence(error)
        assert error.exit_code == 64


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=80), st.integers(0, 400))
def test_a_file_that_is_no_config_ends_in_a_sentence(tmp_path_factory, junk, cut) -> None:
    path = tmp_path_factory.getbasetemp() / "broken.toml"
    text = (RECIPES / "own_grpo.toml").read_text()
    path.write_text(text[:cut] + junk + text[cut:], encoding="utf-8", errors="replace")
    try:
        load(path, [], Config)
    except UsageError as error:
        is_a_sentence(error)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=40))
def test_a_broken_override_ends_in_a_sentence(assignment) -> None:
    try:
        with_overrides({"out": "x", "kl": {"beta": 0.1}}, [assignment])
    except UsageError as error:
        is_a_sentence(error)


def test_bytes_that_are_no_text_end_in_a_sentence(tmp_path) -> None:
    path = tmp_path / "broken.toml"
    for content in (b"\xff\xfe\x00", b'out = "\xe9"', b""):
        path.write_bytes(content)
        with pytest.raises(UsageError) as caught:
            load(path, [], Config)
        is_a_sentence(caught.value)
