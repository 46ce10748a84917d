"""Our own runs on real boards, written by the boards' packages and read back by our importers: the same figures."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.tolerances import FP32
from tests.training.small import settings

from kleash.errors import UsageError
from kleash.runlog.importers import read_log
from kleash.runlog.importers.wandb import read_wandb
from kleash.runlog.series import TrainLog
from kleash.training.api import start
from kleash.training.log_config import LogSpec
from kleash.training.offline.api import dpo, reward_model, sft
from kleash.training.toml import parse_config

PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}


def there() -> list[str]:
    found = []
    for name, package in PACKAGES.items():
        try:
            __import__(package)
        except ImportError:
            continue
        found.append(name)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is stopped after two steps, loses its newest checkpoint, and so takes the second step again."""
    home = tmp_path_factory.mktemp("boards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("TRACKIO_DIR", str(home / "trackio"))
        tree = settings(home, train__checkpoint_every=1, log={"to": there(), "project": "small"})
        tree["rewards"] = [
            {"use": f"{home / 'rewards.py'}:presses_ctrl_c", "name": "even"},
            {"use": f"{home / 'rewards.py'}:even", "name": "again", "weight": 0.0},
        ]
        with pytest.raises(KeyboardInterrupt):
            start(parse_config(tree))
        shutil.rmtree(home / "run" / "checkpoints" / "step-000002")
        tree["rewards"][0]["use"] = tree["rewards"][1]["use"]  # the same without the key
        start(parse_config(tree), resume=True)
    return home


def on(made: Path, board: str) -> TrainLog:
    return read_log(made / "trackio" if board == "trackio" else made / "run" / board)


@pytest.mark.parametrize("board", PACKAGES)
def test_the_figures_on_a_board_are_the_runs_own(made: Path, board: str) -> None:
    pytest.importorskip(PACKAGES[board])
    own, read = read_log(made / "run"), on(made, board)
    assert list(read.step) == list(own.step) == [0, 1, 2, 3, 4]
    names = {name: name for name in own.columns}
    if board == "tensorboard":  # it has no settings, so no weights of rewards
        names["gold/again"] = "reward/again"
    assert set(read.columns) == set(names.values())
    for name, column in own.columns.items():
        np.testing.assert_allclose(read.columns[names[name]], column, rtol=FP32, equal_nan=True, err_msg=name)
    assert {name: (tag.unit, tag.state) for name, tag in read.kl.items()} == {
        name: (tag.unit, tag.state) for name, tag in own.kl.items()
    }
    assert (read.trainer, read.target_unit) == ("kleash", own.target_unit)


def test_a_resumed_run_is_one_run_on_its_boards_and_no_step_is_there_twice(made: Path) -> None:
    run = made / "run"
    if "trackio" in there():
        with closing(sqlite3.connect(made / "trackio" / "small.db")) as database:
            rows = [*database.execute("SELECT run_name, step FROM metrics ORDER BY id")]
        assert [step for _, step in rows] == [0, 1, 2, 3, 4]
        assert len({name for name, _ in rows}) == 1
    if "wandb" in there():
        files = sorted((run / "wandb").glob("offline-run-*/run-*.wandb"))
        assert len({file.name for file in files}) == 1 < len(files)
        assert list(read_wandb(files).table.steps) == [0, 1, 2, 3, 4]
    if "tensorboard" in there():
        assert not any("twice" in note or "again" in note for note in on(made, "tensorboard").notes)


@pytest.mark.parametrize("verb", ["sft", "dpo", "reward"])
def test_the_offline_verbs_write_to_boards(tmp_path: Path, verb: str) -> None:
    pytest.importorskip("tensorboardX")
    tree = settings(tmp_path)
    given = {
        "train.steps": 2, "train.batch_size": 2, "log.to": "tensorboard", "model.device": "cpu",
    }  # fmt: skip
    model, out = tree["model"]["policy"], tmp_path / verb
    pairs = [{"prompt": f"t{i} t5", "chosen": "t4 t6", "rejected": "t3 t7 t9"} for i in range(3, 9)]
    if verb == "sft":
        texts = [{"prompt": one["prompt"], "completion": one["chosen"]} for one in pairs]
        sft(model, texts, held_out=texts[:2], out=out, settings=given | {"kl.max_new_tokens": 4})
    elif verb == "dpo":
        dpo(model, pairs, held_out=pairs[:2], out=out, settings=given)
    else:
        reward_model(model, pairs, held_out=pairs[:2], out=out, settings=given)
    own, read = read_log(out), read_log(out / "tensorboard")
    assert set(read.columns) == set(own.columns)
    assert list(read.step) == list(own.step)
    for name, column in own.columns.items():
        np.testing.assert_allclose(read.columns[name], column, rtol=FP32, equal_nan=True, err_msg=name)


def test_a_config_with_a_board_that_is_not_there_is_refused_before_the_model_is_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    tree = settings(tmp_path, log={"to": ["trackio"]})
    tree["model"]["policy"] = "nowhere"
    with pytest.raises(UsageError, match="the package trackio is not installed"):
        start(parse_config(tree))
    assert not (tmp_path / "run").exists()


def test_what_is_no_board_is_refused() -> None:
    with pytest.raises(UsageError, match="tensorboard"):
        parse_config({"log": {"to": "tensorbord"}})
    with pytest.raises(UsageError, match="twice"):
        LogSpec(to=("wandb", "wandb"))
    with pytest.raises(UsageError, match="empty"):
        LogSpec(project=" ")
