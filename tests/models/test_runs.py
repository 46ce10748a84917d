"""Which checkpoints a run's name means, and which of them is taken, of either trainer's runs."""

from pathlib import Path

import pytest

from kleash.errors import RunError
from kleash.models.runs import Checkpoint, checkpoints, model_of


def run(folder: Path, *steps: int, trl: bool = False, model: bool = False) -> Path:
    for step in steps:
        (folder / (f"checkpoint-{step}" if trl else f"checkpoints/step-{step:06d}")).mkdir(parents=True)
    if model:
        (folder / "config.json").write_text("{}")
    return folder


def test_a_run_gives_its_checkpoints_in_their_order(tmp_path: Path) -> None:
    ours = checkpoints(str(run(tmp_path / "ours", 20, 1_000_000, 100)))
    assert [one.step for one in ours] == [20, 100, 1_000_000]
    assert ours[0].name.endswith("checkpoints/step-000020")
    assert [one.step for one in checkpoints(str(run(tmp_path / "trl", 900, 50, trl=True)))] == [50, 900]
    assert checkpoints("kleash:tiny") == [Checkpoint(name="kleash:tiny", step=None)]
    assert checkpoints("runs/x@step-20") == [Checkpoint(name="runs/x@step-20", step=20)]


def test_of_a_run_the_best_checkpoint_or_the_last(tmp_path: Path) -> None:
    ours = run(tmp_path / "x", 20, 40)
    assert model_of(str(ours)) == str(ours / "checkpoints" / "step-000040")
    (ours / "best").symlink_to("checkpoints/step-000020", target_is_directory=True)
    assert model_of(str(ours)) == str(ours / "best")
    for name in ("kleash:tiny", str(ours / "best"), f"{ours}@step-40"):
        assert model_of(name) == name
    theirs = run(tmp_path / "trl", 9, 10, trl=True)
    assert model_of(str(theirs)) == str(theirs / "checkpoint-10")


def test_a_directory_that_is_a_model_is_that_model(tmp_path: Path) -> None:
    theirs = run(tmp_path / "trl", 9, 10, trl=True, model=True)
    assert model_of(str(theirs)) == str(theirs)
    assert [one.step for one in checkpoints(str(theirs), inside=True)] == [9, 10]


def test_a_run_without_a_checkpoint_has_nothing_to_give(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").touch()
    with pytest.raises(RunError, match="has no checkpoint yet"):
        model_of(str(tmp_path))
