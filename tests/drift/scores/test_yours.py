"""A user's own file and function: the columns reach the function, and what is wrong is said before anything runs."""

import json
from pathlib import Path

import pytest

from kleash.drift.scores.assess import assess
from kleash.drift.scores.task import Generate, answered
from kleash.drift.scores.yours import own_task
from kleash.errors import RunError, UsageError

REWARD = """
def polite(prompts, completions, word, **columns):
    return [None if w == "skip" else float(w in c) for c, w in zip(completions, word)]
"""


def saying(answer: str) -> Generate:
    """A model that says the same to all."""
    return lambda prompts, *, max_new_tokens: [answer] * len(prompts)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, str]:
    """40 prompts, one of which cannot be judged, and a reward beside them."""
    rows = [
        {"prompt": f"Ask for {n}.", "word": "skip" if n == 39 else f"w{n % 4}", "id": f"item {n}"} for n in range(40)
    ]
    (tmp_path / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "reward.py").write_text(REWARD, "utf-8")
    return tmp_path / "held.jsonl", f"{tmp_path / 'reward.py'}:polite"


def test_a_file_and_a_function(files: tuple[Path, str]) -> None:
    task = own_task(*files)
    assert (task.name, task.role, task.family, len(task)) == ("polite", "task", None, 40)
    assert task.ids[7] == "item 7" and task.prompts[7] == "Ask for 7."
    found = answered(
        task, lambda prompts, *, max_new_tokens: ["w0"] * 40, lambda prompts, *, max_new_tokens: ["w0 w1"] * 40
    )
    assert found.base[39] is None and (sum(x or 0 for x in found.base), sum(x or 0 for x in found.tuned)) == (10, 20)
    [score] = assess([found])
    assert (score.outcome, score.change.n, score.source) == ("gained", 39, str(files[0]))


def test_a_function_of_python_and_a_sibling(files: tuple[Path, str]) -> None:
    task = own_task(files[0], lambda completions, **_: [1.0] * len(completions), role="sibling", name="formal")
    assert (task.name, task.role, task.judge(["x"] * 40)) == ("formal", "sibling", [1.0] * 40)


def test_prompts_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("Say a.\nSay b.\n", "utf-8")
    task = own_task(tmp_path / "prompts.txt", "vader")
    assert task.prompts == ("Say a.", "Say b.") and task.ids == ("0", "1")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"question": "x"}], 'row 0: a row of a task needs a "prompt"'),
        ([{"prompt": "x"}, {"prompt": "y", "word": "z"}], r"row 1 has the columns \['prompt', 'word'\]"),
        ([{"prompt": "x", "id": 1}, {"prompt": "y", "id": 1}], "an id stands twice"),
    ],
)
def test_wrong_files(tmp_path: Path, rows: list[dict[str, object]], said: str) -> None:
    path = tmp_path / "held.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    with pytest.raises(UsageError, match=said):
        own_task(path, "vader")


def test_a_function_that_fails_is_named(files: tuple[Path, str]) -> None:
    with pytest.raises(UsageError, match="there is no 'rude'"):
        own_task(files[0], files[1].replace(":polite", ":rude"))
    broken = own_task(files[0], lambda completions, **_: [float("nan")] * len(completions))
    with pytest.raises(RunError, match="gave nan where a finite number or None belongs"):
        broken.judge(["x"] * 40)
