"""Which checkpoints stay, and that one that goes is never half there."""

from pathlib import Path
from typing import Any

import pytest
from tests.training.small import events, settings

from kleash.errors import UsageError
from kleash.runlog import Checkpoint
from kleash.training import shelf
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def filled(root: Path, *steps: int) -> Path:
    for step in steps:
        (root / shelf.name(step)).mkdir(parents=True)
        (root / shelf.name(step) / "model").write_text(str(step))
    return root


def test_the_newest_the_wanted_and_the_pinned_stay(tmp_path):
    root = filled(tmp_path / "checkpoints", *range(1, 8))
    shelf.pin(root / shelf.name(3), tmp_path / "another-run")
    shelf.prune(root, 2, [shelf.name(1), "step-000099", ""])
    assert names(root) == ["step-000001", "step-000003", "step-000006", "step-000007"]
    shelf.prune(root, "all", [])
    assert len(names(root)) == 4
    assert (root / shelf.name(3) / shelf.PINS).read_text() == f"{tmp_path / 'another-run'}\n"


def test_order_is_by_number(tmp_path):
    root = filled(tmp_path, 999_999, 1_000_000, 1_000_001, 5)
    (tmp_path / "step-by-step").mkdir()
    shelf.prune(root, 2, [])
    assert names(root) == ["step-1000000", "step-1000001", "step-by-step"]


@pytest.mark.parametrize("files_gone", [0, 1])
def test_killed_while_one_goes(tmp_path, monkeypatch, files_gone):
    root = filled(tmp_path, 1, 2)

    def dies(path: Path, **_: Any) -> None:
        if path.exists():
            if files_gone:
                (path / "model").unlink()
            raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(shelf.shutil, "rmtree", dies)
        with pytest.raises(SystemExit):
            shelf.remove(root / shelf.name(1))
    assert [path.name for path in shelf.ordered(root)] == ["step-000002"], "no half of it is seen"
    shelf.sweep(root)
    assert names(root) == ["step-000002"]


def test_pins_are_for_checkpoints_of_runs(tmp_path):
    for directory in (tmp_path / "model", tmp_path / "step-000001"):
        directory.mkdir()
        shelf.pin(directory, tmp_path / "run")
        assert names(directory) == []


def test_a_run_keeps_the_newest_the_last_good_and_the_best(tmp_path):
    tree = settings(tmp_path, train__steps=7, train__checkpoint_every=1, train__keep=1)
    run = start(parse_config(tree))
    best = run.best.path.resolve().name
    assert {c.path.name for c in run.checkpoints} == {best, "step-000006", "step-000007"}
    assert [c.step for c in events(run.path, Checkpoint)] == list(range(1, 8))
    assert start(parse_config(tree | {"train": tree["train"] | {"steps": 8}}), resume=True).finished


def test_what_another_run_started_from_stays(tmp_path):
    first = settings(tmp_path, train__checkpoint_every=1, train__steps=2, out=str(tmp_path / "first"))
    start(parse_config(first))
    for name in ("policy", "reference"):
        out, origin = str(tmp_path / name), f"{tmp_path / 'first'}@step-000001"
        run = start(parse_config(settings(tmp_path, **{f"model__{name}": origin, "train__steps": 1, "out": out})))
    first["train"] |= {"steps": 6, "keep": 1}
    longer = start(parse_config(first), resume=True)
    kept = {c.path.name for c in longer.checkpoints}
    assert "step-000001" in kept
    assert "step-000003" not in kept or longer.best.path.resolve().name == "step-000003"
    pins = tmp_path / "first" / "checkpoints" / "step-000001" / shelf.PINS
    assert pins.read_text().split() == [str(tmp_path / "policy"), str(tmp_path / "reference")]
    copy = Run(tmp_path / "first").checkpoints[0].save(tmp_path / "copy")
    assert shelf.PINS not in names(copy)
    assert run.finished


def test_keep_is_a_number_or_all(tmp_path):
    with pytest.raises(UsageError, match=r"train.keep = 0 must be at least 1, or \"all\""):
        parse_config(settings(tmp_path, train__keep=0))
    assert parse_config(settings(tmp_path, train__keep="all")).train.keep == "all"
