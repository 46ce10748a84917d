"""A run that is killed and resumed ends with the same weights and the same records as one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import build
from tests.training.small import OF_THE_MACHINE, events, settings, steps, toml

from kleash.errors import RunError, UsageError
from kleash.models.load import load
from kleash.models.spec import ModelSpec
from kleash.runlog import Checkpoint, Notice, ReferenceChange, Resume, RunEnd, RunStart, Sample, current, read
from kleash.training import checkpoint, online
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config

LORA = {"model__adapter": {"rank": 2}, "train__learning_rate": 1e-2}
QLORA = LORA | {"model__adapter": {"rank": 2, "dora": True}, "model__quantize": "4bit"}


def records(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in asdict(step).items() if k not in OF_THE_MACHINE} for step in steps(run)]


def samples(run: Path) -> list[Any]:
    return [s for s in current(read(run / "samples.jsonl")) if isinstance(s, Sample)]


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    path, _ = checkpoint.newest(run / "checkpoints")
    assert path is not None
    return dict(load(ModelSpec(policy=str(path))).policy.state_dict())


def same_run(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    assert samples(one) == samples(other)
    a, b = last_weights(one), last_weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


class KilledError(Exception):
    """Stands for the end of the process: nothing after it runs but what the test lets run."""


@pytest.mark.parametrize("changes", [{}, LORA, QLORA], ids=["full", "lora", "dora over 4 bits"])
def test_resumed_equals_uninterrupted(tmp_path, monkeypatch, changes):
    """The fast case: the step after a checkpoint dies with its updates made and its record unwritten."""
    start(parse_config(settings(tmp_path, **changes, out=str(tmp_path / "whole"))))
    config = parse_config(settings(tmp_path, **changes))
    tell = online._tell

    def die(state: Any, record: Any, *rest: Any) -> None:
        if record.step == 3:
            raise KilledError
        tell(state, record, *rest)

    monkeypatch.setattr(online, "_tell", die)
    with pytest.raises(KilledError):
        start(config)
    monkeypatch.undo()
    assert [c.step for c in events(tmp_path / "run", Checkpoint)] == [2]
    np.random.seed(99)  # another process
    torch.manual_seed(99)
    start(config, resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")
    assert [r.step for r in events(tmp_path / "run", Resume)] == [2]


def test_resumed_before_the_first_checkpoint(tmp_path, monkeypatch):
    start(parse_config(settings(tmp_path, out=str(tmp_path / "whole"))))
    config = parse_config(settings(tmp_path))
    monkeypatch.setattr(online, "_save", lambda *args: (_ for _ in ()).throw(KilledError()))
    with pytest.raises(KilledError):
        start(config)
    monkeypatch.undo()
    assert not (tmp_path / "run" / "checkpoints").exists()
    start(config, resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")


def kleash(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kleash.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for(seen: Any, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 120
    while not seen():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "name"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "interrupted by SIGTERM")],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_stop_saves_and_says_how_to_resume(tmp_path, number, code, name):
    path = toml(tmp_path, train__steps=1000)
    process = kleash("train", str(path), "kl.target=0.4 nats/sequence")
    wait_for(lambda: (tmp_path / "run" / "events.jsonl").exists() and len(steps(tmp_path / "run")) > 2, process)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == code
    assert f"kleash train {path} 'kl.target=0.4 nats/sequence' --resume" in said
    assert "Traceback" not in said
    done = events(tmp_path / "run", RunEnd)[-1]
    assert done.reason == name
    newest, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert newest.name == f"step-{done.step:06d}"
    config = parse_config(settings(tmp_path, kl__target="0.4 nats/sequence", train__steps=done.step + 1))
    start(config, resume=True)
    assert [s.step for s in steps(tmp_path / "run")] == list(range(done.step + 2))


def test_ctrl_c_in_a_reward_finishes_the_step(tmp_path):
    tree = settings(tmp_path, rewards=[{"use": f"{tmp_path / 'rewards.py'}:presses_ctrl_c"}])
    with pytest.raises(KeyboardInterrupt):
        start(parse_config(tree))
    run = tmp_path / "run"
    assert [c.step for c in events(run, Checkpoint)] == [2]  # the third call: trial, step 0, step 1
    assert events(run, RunEnd)[-1].reason == "interrupted"
    assert [s.step for s in steps(run)] == [0, 1]


def test_a_reward_that_fails_leaves_what_was_trained(tmp_path):
    changes = {"rewards": [{"use": f"{tmp_path / 'rewards.py'}:fails_later"}], "train__checkpoint_every": 50}
    with pytest.raises(RunError, match="the judge is out"):
        start(parse_config(settings(tmp_path, **changes)))
    run = tmp_path / "run"
    assert [c.step for c in events(run, Checkpoint)] == [2]
    assert "the judge is out" in events(run, RunEnd)[-1].reason
    changes["rewards"] = [{"use": f"{tmp_path / 'rewards.py'}:even"}]
    finished = start(parse_config(settings(tmp_path, **changes)), resume=True)
    assert [s.step for s in finished.steps] == [0, 1, 2, 3, 4]
    said = [n for n in events(run, Notice) if n.what == "config_changed"]
    assert len(said) == 1
    assert "rewards" in said[0].text
    assert said[0] in finished.events, "what is said about a resume is not void by it"


@pytest.fixture
def finished(tmp_path):
    start(parse_config(settings(tmp_path)))
    return tmp_path


def test_an_existing_run_is_not_overwritten(finished):
    before = (finished / "run" / "events.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run; go on with --resume"):
        start(parse_config(settings(finished)))
    assert (finished / "run" / "events.jsonl").read_bytes() == before


def test_resuming_nothing(tmp_path):
    with pytest.raises(UsageError, match="there is no run in"):
        start(parse_config(settings(tmp_path)), resume=True)


@pytest.mark.parametrize("left", ["", '{"event": "run_st'])
def test_a_log_without_a_whole_record_is_no_run(tmp_path, left):
    config = parse_config(settings(tmp_path, train__steps=1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text(left)
    with pytest.raises(UsageError, match="there is no run in"):
        start(config, resume=True)
    assert start(config).finished


def test_a_best_that_is_a_copy_is_not_written_over(finished):
    (finished / "run" / "best").unlink()
    (finished / "run" / "best").mkdir()
    with pytest.raises(UsageError, match="is not the link that a run makes there"):
        start(parse_config(settings(finished, train__steps=5)), resume=True)


def test_another_reference_is_refused(finished):
    build.checkpoint(
        finished / "other", seed=5, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1
    )
    with pytest.raises(RunError, match=r"not the one this run started with.*weights changed"):
        start(parse_config(settings(finished, model__reference=str(finished / "other"))), resume=True)
    with pytest.raises(RunError, match="the temperature changed"):
        start(parse_config(settings(finished, train__temperature=0.5)), resume=True)


def test_another_reference_can_be_forced_and_is_then_the_one_held_to(finished):
    build.checkpoint(
        finished / "other", seed=5, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1
    )
    other = {"model__reference": str(finished / "other")}
    run = start(parse_config(settings(finished, **other, train__steps=5)), resume=True, force=True)
    (change,) = events(run.path, ReferenceChange)
    started = events(run.path, RunStart)[0].fingerprints["reference"]
    assert (change.step, change.kind) == (4, "forced")
    assert change.fingerprint["weights"] != started["weights"]
    assert change.fingerprint["tokenizer"] == started["tokenizer"]
    assert [n.step for n in events(run.path, Notice) if n.what == "reference_forced"] == [4]
    assert start(parse_config(settings(finished, **other, train__steps=6)), resume=True).finished
    with pytest.raises(RunError, match="weights changed"):
        start(parse_config(settings(finished, train__steps=7)), resume=True)


def test_loosening_needs_to_be_meant(finished):
    config = parse_config(settings(finished, kl__target="9 nats/sequence", train__steps=5))
    with pytest.raises(UsageError, match=r"from 0.5 nats/sequence to 9 nats/sequence.*--loosen"):
        start(config, resume=True)
    run = start(config, resume=True, loosen=True)
    assert [s.target for s in run.steps][-2:] == ["9 nats/sequence"] * 2


def test_the_leash_compared_with_is_the_one_last_in_force(finished):
    def again(target: str, steps: int, loosen: bool = False) -> Run:
        tree = settings(finished, kl__target=target, train__steps=steps)
        return start(parse_config(tree), resume=True, loosen=loosen)

    again("0.1 nats/sequence", 5)
    with pytest.raises(UsageError, match=r"from 0.1 nats/sequence to 0.5 nats/sequence.*--loosen"):
        again("0.5 nats/sequence", 6)
    again("0.5 nats/sequence", 6, loosen=True)
    assert again("0.5 nats/sequence", 7).finished, "what was allowed once is allowed"


def test_a_beta_raised_on_resume_is_the_beta_of_the_next_step(tmp_path):
    tree = settings(tmp_path)
    tree["kl"] = {"beta": 0.1}
    start(parse_config(tree))
    tree["kl"], tree["train"]["steps"] = {"beta": 0.7}, 6
    run = start(parse_config(tree), resume=True)
    assert [s.beta for s in run.steps] == [0.1] * 4 + [0.7] * 3


def test_a_finished_run_can_go_on_and_can_be_measured_again(finished):
    again = start(parse_config(settings(finished)), resume=True)
    assert [s.step for s in again.steps] == [0, 1, 2, 3, 4]
    longer = start(parse_config(settings(finished, train__steps=6)), resume=True)
    assert [s.step for s in longer.steps] == [0, 1, 2, 3, 4, 5, 6]
    assert longer.finished


def test_a_run_shorter_than_the_checkpoint_interval(tmp_path):
    run = start(parse_config(settings(tmp_path, train__checkpoint_every=50, train__steps=1)))
    assert [c.path.name for c in run.checkpoints] == ["step-000001"]
    assert run.finished
    assert [s.step for s in run.steps] == [0, 1]
    assert run.best.path.resolve() == run.checkpoints[0].path.resolve()
    assert (run.path / "best").is_symlink()
    assert (run.path / "report.html").exists()
    kept = run.best.save(tmp_path / "kept")
    assert sorted(p.name for p in kept.iterdir() if p.suffix == ".safetensors") == ["model.safetensors"]
    begun = events(run.path, RunStart)[0].config
    assert (begun["kl"]["controller"]["kind"], begun["kl"]["beta"]) == ("pi", 0.05)


def test_a_checkpoint_of_an_older_kleash_is_refused_with_the_reason(tmp_path):
    config = settings(tmp_path, train__steps=2)
    start(parse_config(config))
    path, _ = checkpoint.newest(tmp_path / "run" / "checkpoints")
    state = json.loads((path / checkpoint.STATE).read_text())
    del state["memory"]["tail"]
    (path / checkpoint.STATE).write_text(json.dumps(state))
    with pytest.raises(RunError, match="holds nothing of 'tail': an older kleash wrote it"):
        start(parse_config(settings(tmp_path)), resume=True)
