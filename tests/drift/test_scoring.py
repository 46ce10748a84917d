"""Which tasks are asked, and what they are called."""

from dataclasses import replace
from pathlib import Path

import pytest

from kleash.drift import scoring
from kleash.drift.api import checked
from kleash.drift.question import Effort, Question, tasks
from kleash.errors import UsageError


def polite(completions, **columns):
    return [float("please" in text) for text in completions]


def question(tmp_path: Path) -> Question:
    (tmp_path / "held_out.txt").write_text("A tea?\nThe bill?\n")
    return Question(
        base="b", tuned="t", tasks=tasks(str(tmp_path / "held_out.txt"), polite, ()), effort=Effort(items=3)
    )


def test_a_task_of_the_users_keeps_its_name_and_the_built_in_one_gives_way(tmp_path: Path) -> None:
    """README's own example: a function called polite, beside a built-in task of that name."""
    names = [task.name for task in scoring.asked(question(tmp_path))]
    assert names[0] == "polite"
    assert "built-in polite" in names
    assert len(set(names)) == len(names)


def test_the_users_answers_are_drawn_and_the_built_in_tasks_answers_are_the_likeliest(tmp_path: Path) -> None:
    """Those of the user's task are read as the models' own words; of the others only the score is asked."""
    own, *others = scoring.asked(question(tmp_path))
    assert not own.greedy and others and all(task.greedy for task in others)


def test_two_names_alike_are_said_before_anything_is_opened(tmp_path: Path) -> None:
    made = question(tmp_path)
    with pytest.raises(UsageError, match="two tasks are called held_out"):
        checked(replace(made, tasks=made.tasks * 2))
