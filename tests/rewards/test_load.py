"""Finding rewards by name, package, file and callable; adapters for TRL and verl; what is said when it fails."""

import asyncio
import re
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from kleash.errors import RunError, UsageError
from kleash.rewards import RewardSpec, load_reward, load_rewards
from kleash.rewards.load import BUILTIN
from kleash.rewards.score import score


@pytest.fixture
def reward_file(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_reward.py").write_text("FACTOR = 3\n")
    file = tmp_path / "reward.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from helper_of_reward import FACTOR\n"
        "def polite(prompts, completions, **columns):\n"
        "    return [FACTOR * len(c) for c in completions]\n"
        "def scaled(completions, by=1.0):\n"
        "    return [by * len(c) for c in completions]\n"
        "def texts_only(texts):\n"
        "    return [0.0 for _ in texts]\n"
        "@dataclass\n"
        "class Longer:\n"
        "    than: int\n"
        "    def __call__(self, completions):\n"
        "        return [len(c) > self.than for c in completions]\n"
        "limit = 3\n"
        "def trl_one(prompts, completions, completion_ids=None, **kwargs):\n"
        "    assert completion_ids is None\n"
        "    return [len(c) if isinstance(c, str) else 100 + len(c[0]['content']) for c in completions]\n"
        "async def trl_async(completions, gold, **kwargs):\n"
        "    return [float(g == c) for g, c in zip(gold, completions)]\n"
        "def trl_ids(completions, completion_ids):\n"
        "    return [len(ids) for ids in completion_ids]\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert data_source == 'gsm8k', data_source\n"
        "    return {'score': float(solution_str == ground_truth), 'acc': 1, 'info': extra_info}\n"
        "async def compute_async(solution_str, ground_truth, extra_info):\n"
        "    return extra_info.get('bonus', 0) + (solution_str == ground_truth)\n"
        "def compute_bad(solution_str, ground_truth, **kwargs):\n"
        "    return {'acc': 1}\n"
    )
    return file


def of(use: str, texts: list[str], prompts=None, **columns) -> list[float | None]:
    return score([load_reward(use)], prompts or ["p"] * len(texts), texts, columns).total


def test_from_a_file_with_its_neighbours(reward_file):
    rewarder = load_reward(RewardSpec("./reward.py:polite", weight=0.5, timeout_s=3.0))
    assert (rewarder.name, rewarder.weight, rewarder.timeout_s) == ("polite", 0.5, 3)
    assert score([rewarder], ["p"], ["abc"], {}).total == [4.5]
    assert str(reward_file.parent) not in sys.path


def test_from_an_absolute_path(reward_file):
    assert of(f"{reward_file}:polite", ["abc"]) == [9.0]


def test_two_files_of_one_name_are_two_modules(reward_file, tmp_path):
    other = tmp_path / "other" / "reward.py"
    other.parent.mkdir()
    other.write_text("def polite(completions):\n    return [-1.0 for _ in completions]\n")
    assert of("./other/reward.py:polite", ["abc"]) == [-1.0]
    assert of("./reward.py:polite", ["abc"]) == [9.0]


def test_an_edited_file_is_read_again(tmp_path):
    file = tmp_path / "r.py"
    file.write_text("def f(completions):\n    return [1.0]\n")
    assert of(f"{file}:f", ["x"]) == [1.0]
    file.write_text("def f(completions):\n    return [22.0]\n")
    assert of(f"{file}:f", ["x"]) == [22.0]


def test_from_a_package_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_reward_package").mkdir()
    (tmp_path / "my_reward_package" / "rewards.py").write_text(
        "def nice(completions):\n    return [7 for _ in completions]\n"
    )
    assert of("my_reward_package.rewards:nice", ["x"]) == [7.0]


def test_from_a_callable():
    def mine(prompts, completions):
        return [1.0] * len(completions)

    assert load_reward(mine).name == "mine"
    assert load_reward(mine).weight == 1.0
    assert load_reward(lambda completions: [0.0]).name == "reward"


def test_args_are_bound_to_functions_and_build_classes(reward_file):
    scaled = load_reward(RewardSpec("./reward.py:scaled", args={"by": 2.0}))
    assert score([scaled], ["p"], ["abc"], {"by": [5.0]}).total == [6.0]  # args win over a column of that name
    longer = load_reward(RewardSpec("./reward.py:Longer", args={"than": 2}))
    assert (longer.name, score([longer], ["p", "p"], ["abc", "a"], {}).total) == ("Longer", [1.0, 0.0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RewardSpec("vadr"), r"no built-in reward 'vadr' \(did you mean 'vader'\?\).*exact, numeric"),
        (RewardSpec("./nowhere.py:f"), r"there is no file nowhere\.py \(looked in"),
        (
            RewardSpec("./reward.py:polit"),
            r"no 'polit' in \./reward\.py \(did you mean 'polite'\?\); it has polite, scaled",
        ),
        (RewardSpec("./reward.py:limit"), r"is a int, not a function"),
        (RewardSpec("./reward.py:texts_only"), r"'texts_only' does not take `completions`"),
        (RewardSpec("no_such_package.rewards:f"), r"could not be loaded: ModuleNotFoundError"),
        (RewardSpec("./reward.py:scaled", args={"bye": 1}), r"no argument 'bye' \(did you mean 'by'\?\)"),
        (RewardSpec("./reward.py:Longer", args={"then": 1}), r"no argument 'then' \(did you mean 'than'\?\)"),
        (RewardSpec("./reward.py:Longer"), r"cannot be built with args = \{\}.*than"),
        (RewardSpec("regex"), r"'regex' cannot be built.*pattern"),
        (RewardSpec("regex", args={"pattern": "("}), r"the pattern '\(' is not valid"),
        (RewardSpec("vader", args={"lexicon": "x"}), r"no argument 'lexicon'; it takes none"),
        (RewardSpec("numeric", args={"tolerance": -1.0}), r"tolerance must be 0 or more"),
    ],
)
def test_what_cannot_be_loaded_is_a_sentence(reward_file, spec, message):
    with pytest.raises(UsageError, match=message):
        load_reward(spec)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1 / 0\n", r"ZeroDivisionError.*r\.py:1: x = 1 / 0"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(1)\n", "SystemExit"),
    ],
)
def test_code_that_fails_to_load_is_named_with_its_line(tmp_path, code, message):
    (tmp_path / "r.py").write_text(code)
    with pytest.raises(UsageError, match=message) as caught:
        load_reward(f"{tmp_path / 'r.py'}:f")
    assert caught.value.__cause__ is not None
    assert str(tmp_path) not in sys.path


def test_a_set_of_rewards_needs_names_apart_and_a_weight():
    assert [r.name for r in load_rewards(["vader", RewardSpec("vader", name="again")])] == ["vader", "again"]
    with pytest.raises(UsageError, match="two rewards are called 'vader'"):
        load_rewards(["vader", "vader"])
    with pytest.raises(UsageError, match="no reward has any weight"):
        load_rewards([RewardSpec("vader", weight=0.0)])
    with pytest.raises(UsageError, match="no reward has any weight"):
        load_rewards([])


@pytest.mark.parametrize("bad", [{"weight": float("nan")}, {"timeout_s": -1.0}, {"name": ""}])
def test_a_spec_checks_itself(bad):
    with pytest.raises(UsageError):
        RewardSpec("vader", **bad)


def test_a_spec_is_its_config():
    adapter = TypeAdapter(RewardSpec)
    assert adapter.validate_python({"use": "regex", "args": {"pattern": "a"}}) == RewardSpec(
        "regex", args={"pattern": "a"}
    )
    with pytest.raises(ValidationError, match="wieght"):
        adapter.validate_python({"use": "vader", "wieght": 1})
    with pytest.raises(ValidationError):
        adapter.validate_python({"use": "vader", "weight": float("inf")})


@pytest.mark.parametrize("reward", BUILTIN.values(), ids=BUILTIN)
def test_built_in_rewards_forbid_unknown_keys(reward):
    assert reward.__pydantic_config__ == {"extra": "forbid", "allow_inf_nan": False}


# TRL


def test_trl_completions_are_strings_for_text_and_messages_for_messages(reward_file):
    prompts = ["text", [{"role": "user", "content": "hi"}]]
    assert of("trl:./reward.py:trl_one", ["abc", "de"], prompts) == [3.0, 102.0]


def test_trl_async_with_a_column(reward_file):
    assert of("trl:./reward.py:trl_async", ["a", "b"], gold=["a", "x"]) == [1.0, 0.0]


def test_trl_token_ids_only_from_a_column(reward_file):
    assert of("trl:./reward.py:trl_ids", ["a"], completion_ids=[[1, 2]]) == [2.0]
    with pytest.raises(UsageError, match="needs `completion_ids`"):
        of("trl:./reward.py:trl_ids", ["a"])


def test_name_of_an_adapted_reward(reward_file):
    assert load_reward("trl:./reward.py:trl_one").name == "trl_one"
    assert load_reward("verl:./reward.py:compute_score").name == "compute_score"


# verl


def test_verl_per_sample_with_a_dict(reward_file):
    columns = {"data_source": ["gsm8k"] * 2, "ground_truth": ["4", "5"], "extra_info": [{}, None]}
    assert of("verl:./reward.py:compute_score", ["4", "4"], **columns) == [1.0, 0.0]


def test_verl_truth_inside_reward_model_and_async(reward_file):
    columns = {"reward_model": [{"style": "rule", "ground_truth": "4"}] * 2, "extra_info": [{"bonus": 10}, {}]}
    assert of("verl:./reward.py:compute_async", ["4", "3"], **columns) == [11.0, 0.0]


def test_verl_without_truth_or_source(reward_file):
    with pytest.raises(UsageError, match="needs the column `ground_truth`"):
        of("verl:./reward.py:compute_score", ["4"], data_source=["gsm8k"])
    with pytest.raises(UsageError, match="needs `data_source`"):
        of("verl:./reward.py:compute_score", ["4"], ground_truth=["4"])


def test_verl_errors_name_sample_and_line_in_the_users_file(reward_file):
    columns = {"data_source": ["gsm8k", "math", "gsm8k"], "ground_truth": ["4"] * 3}
    with pytest.raises(RunError) as caught:
        of("verl:./reward.py:compute_score", ["4", "5", "6"], **columns)
    assert re.search(r"reward\.py:\d+: assert data_source == 'gsm8k'", str(caught.value))
    assert "sample 1 of 3 (prompt 'p', completion '5')" in str(caught.value)


def test_verl_dict_without_score(reward_file):
    with pytest.raises(RunError, match="gave the dict"):
        of("verl:./reward.py:compute_bad", ["4"], ground_truth=["4"])


def test_adapters_work_in_a_running_event_loop(reward_file):
    async def notebook():
        return of("trl:./reward.py:trl_async", ["a"], gold=["a"])

    assert asyncio.run(notebook()) == [1.0]
