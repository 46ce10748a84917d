"""From items to outcomes: intervals that hold together, what each outcome means, and items that were not judged."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tolerances import EXACT

from kleash.drift.records import Interval
from kleash.drift.scores.assess import assess, outcome
from kleash.drift.scores.builtin import builtin_task
from kleash.drift.scores.paired import change
from kleash.drift.scores.task import Result, Role, answered
from kleash.errors import RunError, UsageError
from kleash.records import Prompt


def result(name: str, base: list[float | None], tuned: list[float | None], role: Role = "other") -> Result:
    ids = tuple(map(str, range(len(base))))
    return Result(name=name, source="x", role=role, ids=ids, base=tuple(base), tuned=tuple(tuned), family="f")


HALF: list[float | None] = [1.0, 0.0] * 40
ALL: list[float | None] = [1.0] * 80
NONE: list[float | None] = [0.0] * 80


def test_outcomes() -> None:
    found = assess([result("up", HALF, ALL, "task"), result("down", HALF, NONE), result("same", HALF, HALF)])
    assert [(one.name, one.outcome, one.base, one.tuned) for one in found] == [
        ("up", "gained", 0.5, 1.0),
        ("down", "LOST", 0.5, 0.0),
        ("same", "no gain", 0.5, 0.5),
    ]
    assert [one.role for one in found] == ["task", "other", "other"] and found[0].family == "f"


def test_where_a_loss_could_be_seen() -> None:
    """Not where the base has next to nothing to lose, nor with few items; by Newcombe's bound below, done by hand.

    Of 80 items 5 right and then none: p = 1/16, Wilson's lower bound at z = 1.96 is 0.0270, the upper one of 0 of 80 is
    0.0458; phi is 0, so the change is below −1/16 + √((1/16 − 0.0270)² + 0.0458²) = −0.0045.
    """
    few, one = ([1.0] * n + [0.0] * (80 - n) for n in (5, 1))
    for role, base, told in (("task", few, True), ("task", one, False), ("task", NONE, False), ("task", HALF, True)):
        [found] = assess([result("x", base, base, role)])  # type: ignore[arg-type]
        assert found.could_lose is told, (base, told)
    assert assess([result("x", HALF[:24], HALF[:24])])[0].could_lose is False
    [ranging] = assess([result("x", [0.5, 0.7] * 40, [-1.0] + [0.6] * 79)])
    assert ranging.could_lose is True
    [bottom] = assess([result("x", [-1.0] * 80, [0.9, 1.0] * 40)])
    assert bottom.could_lose is False


def interval(low: float | None, high: float | None) -> Interval:
    return Interval(value=0.0, low=low, high=high, n=80, clusters=80)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.01, 0.2, "gained"),
        (-0.2, -0.01, "LOST"),
        (0.0, 0.05, "no gain"),
        (-0.3, 0.05, "no gain"),
        (-0.3, 0.1, "unclear"),
        (-0.1, 0.3, "unclear"),
        (None, None, "unclear"),
    ],
)
def test_what_an_interval_says(low: float | None, high: float | None, said: str) -> None:
    assert outcome(interval(low, high), 0.1) == said


def test_the_others_hold_together() -> None:
    """The task's interval is its own at 95 %; each of four others is made for 1 − 0.05/4."""
    random = np.random.default_rng(0)
    mixed: list[float | None] = [float(x) for x in random.random(80) < 0.5]
    others = [result(f"other {n}", HALF, mixed) for n in range(4)]
    found = assess([result("task", HALF, mixed, "task"), *others])
    plain = [0.0 if x is None else x for x in HALF], [0.0 if x is None else x for x in mixed]
    assert found[0].change == change(*plain)
    assert {one.change for one in found[1:]} == {change(*plain, alpha=0.05 / 4)}


def test_a_score_of_another_range_has_its_own_worth() -> None:
    """±2 points are no gain worth having on a scale of 0 to 100, and all of it on one of 0 to 1."""
    random = np.random.default_rng(1)
    base = random.uniform(0, 100, 80)
    near = base + random.uniform(-2, 2, 80)
    [found] = assess([result("points", list(base), list(near))])
    assert found.outcome == "no gain" and found.change.high is not None and found.change.high > 0.1


def test_items_that_one_model_has_no_score_of_are_left_out() -> None:
    base, tuned = [*HALF, None, 1.0], [*HALF, 1.0, None]
    [found] = assess([result("x", base, tuned)])
    assert (found.change.n, found.base, found.tuned) == (80, 0.5, 0.5)
    with pytest.raises(RunError, match=r"no item of x \(x\) was judged for both"):
        assess([result("x", [None] * 30, ALL[:30])])


def test_few_items_are_unclear() -> None:
    [found] = assess([result("x", NONE[:20], ALL[:20])])
    assert (found.outcome, found.change.low) == ("unclear", None)


def test_a_name_stands_once() -> None:
    with pytest.raises(UsageError, match="two tasks are called x"):
        assess([result("x", HALF, ALL), result("x", HALF, ALL)])


class Fixed:
    """A model that answers from a list."""

    def __init__(self, answers: list[str]) -> None:
        self.answers, self.asked, self.most = answers, list[Prompt](), 0

    def __call__(self, prompts: tuple[Prompt, ...], *, max_new_tokens: int) -> list[str]:
        self.asked, self.most = list(prompts), max_new_tokens
        return self.answers


def test_both_models_answer_the_same_items() -> None:
    task = builtin_task("sums")
    base, tuned = Fixed(["0"] * 42), Fixed(["It is 100."] * 42)
    found = answered(task, base, tuned)
    assert base.asked == tuned.asked == list(task.prompts) and base.most == task.max_new_tokens
    assert (found.name, found.role, found.ids, found.family) == ("sums", "other", task.ids, "arithmetic")
    assert found.base == tuple(task.judge(["0"] * 42)) and found.tuned_texts == ("It is 100.",) * 42
    [score] = assess([found])
    assert score.tuned == pytest.approx(float(np.mean(task.judge(["100"] * 42))), rel=EXACT)


def test_a_model_that_answers_too_little() -> None:
    task = builtin_task("sums")
    with pytest.raises(RunError, match="sums has 42 prompts and got 41 answers"):
        answered(task, Fixed(["0"] * 42), Fixed(["0"] * 41))
    with pytest.raises(RunError, match="42 prompts and got 2 scores"):
        answered(replace(task, judge=lambda texts: [0.0, 1.0]), Fixed(["0"] * 42), Fixed(["0"] * 42))
