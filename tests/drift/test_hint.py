"""Which earlier checkpoint of a run is worth a try, by the run's own log."""

from pathlib import Path

import pytest
from tests.report.made import reading, step, write_run

from kleash.drift.hint import earlier
from kleash.runlog import Checkpoint

#: step → (KL in nats/sequence, score); the first step scores 0.2.
COURSE = {20: (1.0, 0.45), 40: (3.0, 0.66), 60: (6.0, 0.70), 80: (9.0, 0.78)}


def made(folder: Path, course: dict[int, tuple[float, float]] = COURSE) -> Path:
    found = [
        Checkpoint(step=n, path=f"checkpoints/step-{n:06d}", score=score, kl_ref=reading(kl))
        for n, (kl, score) in course.items()
    ]
    run = write_run(folder / "polite", [step(0, 80, score=0.2), *found])
    for one in found:
        (run / one.path).mkdir(parents=True)
    (run / "best").symlink_to(f"checkpoints/step-{max(course):06d}", target_is_directory=True)
    return run


@pytest.mark.parametrize("name", ["{}/best", "{}@step-80", "{}/checkpoints/step-000080"])
def test_half_the_kl_and_most_of_the_gain(tmp_path: Path, name: str) -> None:
    run = made(tmp_path)
    found = earlier(name.format(run))
    assert found is not None
    assert found.text == f"try {run}@step-40 (by its log: KL 3 nats/sequence, score 0.66)"


def test_a_checkpoint_that_is_gone_is_not_named(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / "checkpoints" / "step-000040").rmdir()
    assert earlier(f"{run}/best") is None  # step 20 has less than half of the gain


def test_there_is_nothing_to_try_before_the_first_or_outside_a_run(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert earlier(f"{run}@step-20") is None
    assert earlier(str(tmp_path)) is None
    assert earlier("kleash:tiny") is None
    assert earlier("owner/model") is None


def test_a_damaged_log_is_no_reason_to_end_an_audit(tmp_path: Path) -> None:
    run = made(tmp_path)
    (run / "events.jsonl").write_text("not json\nnor this\n")
    assert earlier(f"{run}/best") is None
