"""Other trainers' and loggers' files (tools/make_fixtures.py), against what their own readers say of them."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.tolerances import EXACT
from tools.make_fixtures import LARGEST, MANIFEST, RECIPES, files

from kleash.errors import RunError
from kleash.runlog.importers import read_log
from kleash.runlog.importers.tensorboard import read_tensorboard
from kleash.runlog.importers.wandb import read_wandb
from kleash.runlog.series import TrainLog

FIXTURES = Path(__file__).parent / "fixtures"
EVENTS = "events.out.tfevents.1700000000.host.1.0"


def same(first: TrainLog, second: TrainLog, *names: str) -> None:
    for name in names:
        np.testing.assert_array_equal(first.columns[name], second.columns[name])


# ── loggers, against their own readers ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["trl", "nemo-rl", "slime"])
def test_event_files_as_tensorboard_reads_them(name: str) -> None:
    told = json.loads((FIXTURES / "tensorboard" / f"{name}.json").read_text())
    table = read_tensorboard([FIXTURES / "tensorboard" / name / EVENTS]).table
    assert set(table.keys) == set(told)
    for tag, pairs in told.items():
        axis = table.axis([tag])
        assert axis.tolist() == [step for step, _ in pairs]
        np.testing.assert_array_equal(table.column(tag, axis), [value for _, value in pairs])


def test_a_second_event_file_is_a_resume() -> None:
    log = read_log(FIXTURES / "tensorboard" / "trl")
    assert log.step.tolist() == list(range(1, 11))
    assert log.columns["reward"][-1] == 2 * np.float32(0.7)
    assert any("step 9 came again after step 12" in note for note in log.notes)
    assert np.isnan(log.columns["kl_ref"][6])


@pytest.mark.parametrize("name", ["trl", "slime"])
def test_a_wandb_file_as_wandb_reads_it(name: str) -> None:
    told = json.loads((FIXTURES / "wandb" / f"{name}.json").read_text())
    table = read_wandb([FIXTURES / "wandb" / f"offline-run-20260101_000000-{name}" / f"run-{name}.wandb"]).table
    for key, series in table.keys.items():
        expected = [float(row[key]) for row in told if key in row]
        np.testing.assert_array_equal(series.values, expected)
    scalars = {key for row in told for key in row if not key.startswith(("_", "completions/"))}  # those are a table's
    assert scalars == set(table.keys)


def test_a_wandb_run_of_trl() -> None:
    log = read_log(FIXTURES / "wandb" / "offline-run-20260101_000000-trl")
    assert (log.label, log.ended) == ("TRL GRPO", "finished")
    assert log.step.tolist() == list(range(1, 13))
    assert log.config["beta"] == 0.04
    assert log.columns["beta"].tolist() == [0.04] * 12
    assert log.notes == ()
    assert log.sample_steps == (6, 12)
    assert [(one.completion, one.score) for one in log.samples((12,))] == [("four, at 12", 1.0), ("five", 0.0)]


def test_trackio_as_trackio_reads_it(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_bytes(gzip.decompress((FIXTURES / "trackio" / "run.db.gz").read_bytes()))
    told = json.loads((FIXTURES / "trackio" / "run.json").read_text())
    log = read_log(tmp_path)
    assert log.step.tolist() == [row["step"] for row in told]
    np.testing.assert_array_equal(log.columns["reward"], [row["train/reward"] for row in told])
    kls = [np.nan if row["train/kl"] == "NaN" else row["train/kl"] for row in told]
    np.testing.assert_array_equal(log.columns["kl_ref"], kls)
    assert any("the newest of the 2 runs" in note for note in log.notes)


# ── trainers ────────────────────────────────────────────────────────────────────────────────────────────


def test_verl_prints_what_it_logs() -> None:
    """Console (colours, Ray's prefix, np.float64(…)) and file logger hold one run."""
    console, file = read_log(FIXTURES / "verl" / "console.log"), read_log(FIXTURES / "verl" / "file-logger.jsonl")
    rows = [json.loads(line) for line in (FIXTURES / "verl" / "file-logger.jsonl").read_text().splitlines()]
    for log in (console, file):
        assert log.label == "verl"
        assert log.step.tolist() == [row["step"] for row in rows]
        for column, key in {
            "reward": "critic/score/mean",
            "kl_ref": "actor/kl_loss",
            "kl_ref/actor/reward_kl_penalty": "actor/reward_kl_penalty",
            "length": "response_length/mean",
            "grad_norm": "actor/grad_norm",
        }.items():
            assert log.columns[column].tolist() == [row["data"][key] for row in rows]
    assert np.isfinite(console.columns["held_out/openai/gsm8k/reward/mean@1"]).sum() == 3
    assert (console.kl["kl_ref"].estimator, console.kl["kl_ref"].clamp) == ("k3", 10.0)
    assert console.kl["kl_ref/actor/reward_kl_penalty"].estimator == "k1"
    assert console.kl["kl_old"].key == "actor/ppo_kl"


def test_rollouts_alone_give_the_scores() -> None:
    log = read_log(FIXTURES / "verl" / "rollouts")
    assert log.columns["reward"].tolist() == [2.5 / 4] * 12
    assert log.samples((3,))[0].completion == "the answer is 3"
    assert log.kl["kl_ref"].state == "absent"
    assert "--columns" not in log.kl["kl_ref"].note  # no map could name a column here


def test_rollouts_are_the_samples_of_the_log_beside_them() -> None:
    log = read_log(FIXTURES / "verl")
    assert log.label == "verl"
    assert log.sample_steps == tuple(range(1, 13))
    assert [one.score for one in log.samples((2,))] == [0.5, 1.0, 0.0, 1.0]


def test_openrlhf() -> None:
    console, events = read_log(FIXTURES / "openrlhf" / "console.log"), read_log(FIXTURES / "openrlhf" / "tensorboard")
    assert console.step.tolist() == events.step.tolist() == list(range(1, 13))
    np.testing.assert_array_equal(console.columns["kl_ref"].astype(np.float32), events.columns["kl_ref"])
    assert console.kl["kl_ref"].estimator == "k1"
    assert np.isnan(console.columns["kl_sampler"][4])
    assert console.samples((2,))[0].completion == "Question 2: 2 + 2?\nIt's 4."
    assert np.isfinite(events.columns["held_out/gsm8k_pass1"]).sum() == 3


@pytest.mark.parametrize("path", ["openrlhf/without-reference.log", "tensorboard/nemo-rl"])
def test_a_kl_logged_as_0_is_none(path: str) -> None:
    log = read_log(FIXTURES / path)
    assert log.kl["kl_ref"].state == "logged as 0"
    assert log.column("kl_ref") is None


def test_nemo_rl_tells_its_mismatches_apart() -> None:
    log = read_log(FIXTURES / "tensorboard" / "nemo-rl")
    assert {name: tag.key for name, tag in log.kl.items() if tag.meaning == "kl_sampler"} == {
        "kl_sampler": "gen_kl_error",
        "kl_sampler/policy_kl_error": "policy_kl_error",
        "kl_sampler/js_divergence_error": "js_divergence_error",
    }


def test_slime_counts_rollouts_and_updates_apart() -> None:
    log = read_log(FIXTURES / "wandb" / "offline-run-20260101_000000-slime")
    assert log.label == "slime"
    assert log.step.tolist() == list(range(12))
    np.testing.assert_allclose(log.columns["kl_ref"], [0.003 * (2 * step + 1) for step in range(12)], rtol=EXACT)
    np.testing.assert_allclose(log.columns["kl_ref/rollout/log_probs"], [0.01 * n for n in range(12)], atol=EXACT)


def test_prime_rl_has_two_files() -> None:
    log = read_log(FIXTURES / "prime-rl")
    assert log.label == "prime-rl"
    assert {"reward", "kl_sampler", "length", "held_out/math/avg@8"} <= set(log.columns)
    assert log.kl["kl_ref"].state == "absent"
    assert log.notes == ()


def test_ms_swift() -> None:
    log = read_log(FIXTURES / "ms-swift")
    assert log.label == "ms-swift GRPO"
    assert log.step.tolist() == list(range(1, 11))
    assert [one.score for one in log.samples((5,))] == [1.0, 0.0]
    assert log.columns["entropy"].tolist() == [0.6] * 10


@pytest.mark.parametrize(
    ("folder", "label", "unit"),
    [
        ("trl-0.14/grpo-no-eval", "TRL GRPO (0.16 or older)", "nats/token"),
        ("trl-0.14/ppo", "TRL PPO", "nats/sequence"),
        ("trl-0.19/grpo", "TRL GRPO", "nats/token"),
        ("trl-0.19/ppo", "TRL PPO", "nats/sequence"),
        ("trl-0.24/grpo", "TRL GRPO", "nats/token"),
        ("trl-0.24/ppo", "TRL PPO", "nats/sequence"),
        ("published/open-r1-255", "TRL GRPO (0.16 or older)", "nats/token"),
        ("published/hongbomiao-37684", "TRL PPO", "nats/sequence"),
    ],
)
def test_older_versions_of_trl(folder: str, label: str, unit: str) -> None:
    log = read_log(FIXTURES / folder)
    assert log.label == label
    assert log.kl["kl_ref"].unit == unit
    assert log.column("kl_ref" if unit == "nats/token" else "kl_ref_sequence") is not None
    if "published" not in folder:
        assert log.column("beta") is not None
        assert len(log.checkpoints) == 2
    if unit == "nats/sequence":  # TRL's PPO logs no lengths: nats per token are not known
        assert log.column("kl_ref") is None
        assert log.kl["kl_old"].key == "policy/approxkl_avg"


def test_a_kl_that_is_never_a_number() -> None:
    log = read_log(FIXTURES / "published" / "open-r1-704")
    assert log.kl["kl_ref"].state == "NaN"
    assert log.column("kl_ref") is None


def test_what_trl_prints(tmp_path: Path) -> None:
    """Rows as transformers' progress callback prints them; they have no step."""
    rows = json.loads((FIXTURES / "published" / "trl-3452" / "trainer_state.json").read_text())["log_history"]
    lines = [str({key: value for key, value in row.items() if key != "step"}) for row in rows]
    (tmp_path / "train.log").write_text("".join(f"  1%|▌ | 1/100 [00:01<01:00]{line}\n" for line in lines))
    log = read_log(tmp_path)
    assert log.step.tolist() == [1, 2, 3, 4]
    assert log.columns["kl_ref"].tolist() == [row["kl"] for row in rows]
    assert any("prints no step" in note for note in log.notes)


def test_the_newer_log_of_a_trl_run_counts(tmp_path: Path) -> None:
    """trainer_state.json is written at checkpoints; event files go on."""
    shutil.copytree(FIXTURES / "trl-1.16" / "grpo", tmp_path / "run")
    shutil.copytree(FIXTURES / "tensorboard" / "trl", tmp_path / "run" / "runs" / "now")
    log = read_log(tmp_path / "run")
    assert log.step.tolist() == list(range(1, 11))
    assert log.sample_steps == (2, 4, 6)
    assert log.columns["beta"].tolist() == [0.04] * 10
    assert any("goes on beyond the last checkpoint" in note for note in log.notes)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no training log that kleash knows"):
        read_log(tmp_path)
    with pytest.raises(RunError, match="there is no"):
        read_log(tmp_path / "gone")


def test_every_fixture_has_its_maker() -> None:
    """What lies there is what MANIFEST.json says the trainers' code wrote, and small."""
    manifest = json.loads(MANIFEST.read_text())
    assert set(manifest) == set(RECIPES)
    for name, entry in manifest.items():
        there = files(FIXTURES / name)
        assert list(there) == entry["files"]
        assert max(there.values()) <= LARGEST
        assert entry["module"] == RECIPES[name].module
