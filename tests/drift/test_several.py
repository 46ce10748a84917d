"""Which checkpoints a name means, and which of a curve is worth a try."""

from pathlib import Path

import pytest
from tests.report.test_drift_ranking import curve, ranks, standing

from kleash.drift.question import Effort, Question
from kleash.drift.several import along, chosen, course, folders, nearer
from kleash.errors import UsageError


def run(folder: Path, *steps: int, trl: bool = False, model: bool = False) -> Path:
    for step in steps:
        (folder / (f"checkpoint-{step}" if trl else f"checkpoints/step-{step:06d}")).mkdir(parents=True)
    if model:
        (folder / "config.json").write_text("{}")
    return folder


def test_of_a_run_the_best_checkpoint_or_the_last(tmp_path: Path) -> None:
    ours = run(tmp_path / "x", 20, 40)
    assert chosen(str(ours)) == str(ours / "checkpoints" / "step-000040")
    (ours / "best").symlink_to("checkpoints/step-000020", target_is_directory=True)
    assert chosen(str(ours)) == str(ours / "best")
    assert chosen("kleash:tiny") == "kleash:tiny"
    assert chosen(str(ours / "best")) == str(ours / "best")


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
    assert nearer(ranks(kind="curve", rows=rows)) == "try x@step-2 (KL 0.1, polite 0.60)"
    assert nearer(ranks(kind="curve", rows=[rows[0], rows[2]])) is None  # 0.4 → 0.5 is a third of the gain
    assert nearer(curve()) is None  # step 40 has two thirds of the KL


@pytest.mark.parametrize("bad", [{"tokens": 0}, {"samples": -1}, {"max_new_tokens": 0}])
def test_an_effort_that_cannot_be_meant_is_refused(bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be"):
        Effort(**bad)
