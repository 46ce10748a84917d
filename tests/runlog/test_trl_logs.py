"""TRL's own files (tools/make_fixtures.py) through the importer, against the files read with nothing but json."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from tests.tolerances import EXACT

from kleash.errors import RunError
from kleash.runlog.importers import read_log

TRL = Path(__file__).parent / "fixtures" / "trl-1.16"


def rows(name: str) -> list[dict[str, float]]:
    history = json.loads((TRL / name / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    return [row for row in history if "loss" in row]


def test_grpo() -> None:
    log, told = read_log(TRL / "grpo"), rows("grpo")
    assert (log.trainer, log.label, log.smoothing, log.ended) == ("TRL", "TRL GRPO", 2, "finished")
    assert log.step.tolist() == [2, 4, 6]
    for column, key in {
        "reward": "reward",
        "kl_ref": "kl",
        "length": "completions/mean_length",
        "reward/length_reward": "rewards/length_reward/mean",
        "entropy": "entropy",
    }.items():
        assert log.columns[column].tolist() == [row[key] for row in told]
    assert log.columns["kl_ref_sequence"].tolist() == pytest.approx(
        [row["kl"] * row["completions/mean_length"] for row in told], rel=EXACT
    )
    assert log.columns["beta"].tolist() == [0.04] * 3
    held_out = log.columns["held_out/reward"].tolist()
    assert math.isnan(held_out[0]) and all(map(math.isfinite, held_out[1:]))
    tag = log.kl["kl_ref"]
    assert (tag.estimator, tag.unit, tag.key, tag.state) == ("k3", "nats/token", "kl", "measured")
    assert "importance ratio" in tag.note
    assert [(model.step, model.path.name) for model in log.checkpoints] == [(4, "checkpoint-4"), (6, "checkpoint-6")]


def test_its_samples() -> None:
    import pyarrow.parquet as parquet

    log = read_log(TRL / "grpo")
    assert log.sample_steps == (2, 4, 6)
    assert set(log.sample_marks) == {2, 4, 6} and len({*log.sample_marks.values()}) == 3
    written = parquet.read_table(TRL / "grpo" / "completions" / "completions_00004.parquet").to_pylist()
    samples = log.samples((4,))
    assert [(s.step, s.prompt, s.completion) for s in samples] == [(4, r["prompt"], r["completion"]) for r in written]
    assert [s.score for s in samples] == [r["length_reward"] + r["praise_reward"] for r in written]
    assert len(log.samples(None)) == 3 * len(written)


@pytest.mark.parametrize("path", ["grpo/checkpoint-4", "grpo/checkpoint-4/trainer_state.json"])
def test_a_checkpoint_knows_no_later_one(path: str) -> None:
    log = read_log(TRL / path)
    assert log.step.tolist() == [2, 4]
    assert [model.step for model in log.checkpoints] == [4]
    assert log.sample_steps == (2, 4)
    assert log.ended is None


def test_beta_0_is_no_kl() -> None:
    log = read_log(TRL / "grpo-beta-0")
    assert log.column("kl_ref") is None
    assert log.kl["kl_ref"].state == "absent"
    assert "beta = 0" in log.kl["kl_ref"].note
    assert log.columns["beta"].tolist() == [0.0] * 3


def test_without_its_arguments_a_log_says_less(tmp_path: Path) -> None:
    shutil.copy(TRL / "grpo-beta-0" / "checkpoint-6" / "trainer_state.json", tmp_path)
    log = read_log(tmp_path)
    assert log.label == "TRL GRPO"
    assert "beta" not in log.columns
    assert "0 by default" in log.kl["kl_ref"].note


def test_rloo_is_told_from_grpo() -> None:
    log = read_log(TRL / "rloo")
    assert log.label == "TRL RLOO"
    assert log.kl["kl_ref"].estimator == "k1"


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_pairs(name: str) -> None:
    log, told = read_log(TRL / name), rows(name)
    assert log.label == f"TRL {name.upper()}"
    assert log.columns["margin"].tolist() == [row["rewards/margins"] for row in told]
    assert log.columns["logp_chosen"].tolist() == [row["logps/chosen"] for row in told]
    assert log.kl["kl_ref"].state == "absent"
    assert log.column("kl_ref") is None
    assert ("kl_kto" in log.columns) == (name == "kto")


def test_a_state_cut_in_the_middle_gives_its_whole_rows(tmp_path: Path) -> None:
    whole = (TRL / "grpo" / "checkpoint-6" / "trainer_state.json").read_text()
    (tmp_path / "trainer_state.json").write_text(whole[: whole.index('"step": 4') + 100])
    log = read_log(tmp_path)
    assert log.step.tolist() == [2, 4]
    assert any("ends in the middle" in note for note in log.notes)


def test_a_later_run_in_the_same_directory(tmp_path: Path) -> None:
    """checkpoint-4 of a later run lies beside checkpoint-6 of an earlier one; copies of one run are told from that."""
    shutil.copytree(TRL / "grpo" / "checkpoint-6", tmp_path / "checkpoint-6")
    state = tmp_path / "checkpoint-4" / "trainer_state.json"
    for source, steps in (("grpo", [2, 4, 6]), ("rloo", [2, 4])):
        shutil.rmtree(state.parent, ignore_errors=True)
        shutil.copytree(TRL / source / "checkpoint-4", state.parent)
        os.utime(state, (2e9, 2e9))
        assert read_log(tmp_path).step.tolist() == steps
    assert any("checkpoint-6 is of an earlier run" in note for note in read_log(tmp_path).notes)
    assert [model.step for model in read_log(tmp_path).checkpoints] == [4]


def test_samples_newer_than_the_last_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(TRL / "grpo", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    assert read_log(tmp_path / "run").sample_steps == (2, 4, 6)
    assert read_log(tmp_path / "run" / "checkpoint-4").sample_steps == (2, 4)


def test_a_torn_parquet_is_left_out(tmp_path: Path) -> None:
    shutil.copytree(TRL / "grpo", tmp_path / "run")
    torn = tmp_path / "run" / "completions" / "completions_00006.parquet"
    torn.write_bytes(torn.read_bytes()[:1000])
    log = read_log(tmp_path / "run")
    assert log.sample_steps == (2, 4)
    assert any("completions_00006" in note for note in log.notes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("{}", "log_history"),
        ('{"log_history": 3}', "log_history"),
        ('{"log_history": [], "global_step": 0}', "no step yet"),
        ('{"log_history": [1]}', "no object"),
        ('{"log_history": [{"step": 1, "reward": "NaN", "reward_std": null, "frac_reward_zero_std": NaN}]', ""),
    ],
)
def test_a_bad_state(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    if says:
        with pytest.raises(RunError, match=says):
            read_log(tmp_path)
    else:
        log = read_log(tmp_path)
        assert log.column("reward") is None
        assert "reward" in log.columns
