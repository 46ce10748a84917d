"""Which checkpoints a name means, and which of a curve is worth a try."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.models.test_runs import run
from tests.report.test_drift_ranking import curve, ranks, standing

from kleash.cli import auditing
from kleash.drift.question import Effort, Question
from kleash.drift.several import along, chosen, course, folders, nearer
from kleash.errors import UsageError


def test_a_run_is_taken_in_the_precision_that_is_asked_for(tmp_path: Path) -> None:
    ours = run(tmp_path / "x", 20, 40)
    assert chosen(str(ours)) == str(ours / "checkpoints" / "step-000040")
    assert chosen(f"{ours}@bfloat16") == f"{ours}/checkpoints/step-000040@bfloat16"
    assert chosen("kleash:tiny@4bit") == "kleash:tiny@4bit"


def test_base_may_be_a_run_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = run(tmp_path / "sft", 30), run(tmp_path / "rl", 50)
    asked: list[Question] = []

    def audited(question: Question) -> None:
        asked.append(question)
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing, "audited", audited)
    with pytest.raises(KeyboardInterrupt):
        question = Question(base=str(before), tuned="", effort=Effort())
        auditing.run(question, [str(after)], out=tmp_path, curve=False, as_json=True)
    ends = ("sft/checkpoints/step-000030", "rl/checkpoints/step-000050")
    assert asked[0].base.endswith(ends[0]) and asked[0].tuned.endswith(ends[1])


def test_a_course_is_all_checkpoints_of_either_trainer(tmp_path: Path) -> None:
    assert [Path(name).name for name in course(str(run(tmp_path / "x", 100, 20)))] == ["step-000020", "step-000100"]
    theirs = run(tmp_path / "trl", 9, 10, trl=True, model=True)
    assert [Path(name).name for name in course(str(theirs))] == ["checkpoint-9", "checkpoint-10"]
    assert chosen(str(theirs)) == str(theirs)
    with pytest.raises(UsageError, match="--curve is for a run"):
        course("kleash:tiny")


def test_a_curve_asks_for_less_at_each_checkpoint() -> None:
    asked = along(Question(base="a", tuned="b", effort=Effort(tokens=500)))
    assert (asked.effort.samples, asked.effort.yardsticks, asked.effort.tokens) == (0, False, 500)


def test_folders_are_told_apart() -> None:
    assert folders(["runs/a/best", "other/a/best", "runs/a/best", "kleash:tiny@4bit"]) == [
        "runs-a-best",
        "other-a-best",
        "runs-a-best-2",
        "kleash-tiny@4bit",
    ]


def test_half_the_kl_and_half_the_gain_is_worth_a_try() -> None:
    rows = [
        standing(f"x@step-{n}", kl, score, step=n) for n, kl, score in [(1, 0.01, 0.5), (2, 0.1, 0.6), (3, 0.3, 0.7)]
    ]
    assert (
        nearer(ranks(kind="curve", rows=rows)) == "try x@step-2 (KL off task, base||tuned, 0.1 nats/token, polite 0.60)"
    )
    assert nearer(ranks(kind="curve", rows=[rows[0], rows[2]])) is None  # 0.4 → 0.5 is a third of the gain
    bounds = [replace(row, kind="lower bound") for row in rows]
    assert nearer(ranks(kind="curve", rows=bounds)) is None  # half of a bound is half of nothing known
    assert nearer(curve()) is None  # step 40 has two thirds of the KL


@pytest.mark.parametrize("bad", [{"tokens": 0}, {"samples": -1}, {"max_new_tokens": 0}])
def test_an_effort_that_cannot_be_meant_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be"):
        Effort(**bad)
