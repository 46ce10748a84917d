"""Updates that are not finite: skipped, told of, and where they go on, undone from the last good checkpoint."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.tolerances import FP32
from tests.training.small import events, settings
from tests.training.test_resume import KilledError, last_weights, same_run

from kleash.errors import RunError
from kleash.runlog import Checkpoint, Notice, Rollback, Sample, current, read
from kleash.training import bad, checkpoint, learn, online, rollback
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config

NAN = float("nan")


def broken_in(monkeypatch: pytest.MonkeyPatch, when: Any) -> None:
    """Makes the gradient norm NaN in the steps for which `when(step, learning rate of the step)`."""
    now: dict[str, Any] = {}
    real_collect, real_norm = online.collect, torch.nn.utils.clip_grad_norm_

    def collected(job: Any, state: Any, *rest: Any) -> Any:
        now["step"], now["job"] = state.step, job
        return real_collect(job, state, *rest)

    def norm(parameters: Any, most: float) -> Any:
        found = real_norm(parameters, most)
        rate = now["job"].optimizer.param_groups[0]["lr"]
        return torch.tensor(NAN) if when(now["step"], rate) else found

    monkeypatch.setattr(online, "collect", collected)
    monkeypatch.setattr(learn.torch.nn.utils, "clip_grad_norm_", norm)


def config(tmp_path: Path, name: str = "run", **changes: Any) -> Any:
    changes = {"train__steps": 9, "train__warmup_updates": 0, "out": str(tmp_path / name)} | changes
    return parse_config(settings(tmp_path, **changes))


def test_a_bad_batch_is_skipped_counted_and_kept(tmp_path, monkeypatch):
    broken_in(monkeypatch, lambda step, _: step == 1)
    weights: dict[int, Any] = {}
    real = online.take_step

    def taken(job: Any, state: Any, *rest: Any) -> None:
        real(job, state, *rest)
        weights[state.step] = [p.detach().clone() for p in job.loaded.policy.parameters()]

    monkeypatch.setattr(online, "take_step", taken)
    run = start(config(tmp_path, train__steps=3))
    assert run.finished
    assert [s.updates_skipped for s in run.steps] == [0, 1, 0, None]
    assert [s.loss is None for s in run.steps] == [False, True, False, True]
    assert all(torch.equal(a, b) for a, b in zip(weights[1], weights[2], strict=True)), "the weights did not move"
    assert not all(torch.equal(a, b) for a, b in zip(weights[2], weights[3], strict=True))
    (said,) = [n for n in events(run.path, Notice) if n.what == "update_skipped"]
    assert said.step == 1
    assert "gradient norm nan" in said.text
    assert str(run.path / "bad" / "step-000001.safetensors") in said.text
    kept = load_file(run.path / "bad" / "step-000001.safetensors")
    told = json.loads((run.path / "bad" / "step-000001.json").read_text())
    samples = [s for s in read(run.path / "samples.jsonl") if isinstance(s, Sample) and s.step == 1]
    assert told["completions"] == [s.completion for s in samples]
    assert told["updates"][0]["grad_norm"] == "nan"
    assert kept["mask"].sum(1).tolist() == [s.length for s in samples]
    kl = (kept["kl"] * kept["mask"]).sum(1)
    torch.testing.assert_close(kl, torch.tensor([s.kl_ref for s in samples]), rtol=FP32, atol=FP32)
    assert sorted(p.name for p in (run.path / "bad").iterdir()) == ["step-000001.json", "step-000001.safetensors"]


def test_only_the_first_bad_batches_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(bad, "MOST", 2)
    broken_in(monkeypatch, lambda step, _: step % 2 == 1)
    run = start(config(tmp_path, train__steps=7))
    assert sorted(p.name for p in (run.path / "bad").glob("*.json")) == ["step-000001.json", "step-000003.json"]
    assert "takes no more" in [n for n in events(run.path, Notice) if n.what == "update_skipped"][-1].text


def too_fast(step: int, rate: float) -> bool:
    """Broken in steps 5, 6 and 7 for as long as the learning rate is the one that was asked for."""
    return step in (5, 6, 7) and rate > 0.9e-3


@pytest.mark.parametrize("every", [1, 2, 50])
def test_three_in_a_row_go_back_to_what_was_good(tmp_path, monkeypatch, every):
    broken_in(monkeypatch, too_fast)
    run = start(config(tmp_path, train__checkpoint_every=every))
    assert run.finished
    (back,) = events(run.path, Rollback)
    # Checkpoint 5 holds the very weights that step 5 broke on; without one before it, the run's start is good.
    assert (back.step, back.from_step, back.number) == ({1: 4, 2: 4, 50: 0}[every], 8, 1)
    assert back.learning_rate == 0.5e-3
    assert "3 steps in a row" in back.why
    assert [s.step for s in run.steps] == list(range(10))
    assert [s.updates_skipped for s in run.steps[:-1]] == [0] * 9, "the broken records are void"
    expected = [1e-3] * back.step + [0.5e-3] * (9 - back.step)
    assert [s.learning_rate for s in run.steps[:-1]] == expected
    assert (run.path / "best").exists()
    assert [s.step for s in current(read(run.path / "samples.jsonl")) if isinstance(s, Sample)][-1] == 9
    assert "going back" not in (run.path / "report.html").read_text()
    assert "the run went back to here" in (run.path / "report.html").read_text()


def test_going_back_is_the_same_as_having_resumed_there(tmp_path, monkeypatch):
    """From checkpoint 4 on the run is the one that a person would get who resumes there at half the learning rate."""
    broken_in(monkeypatch, too_fast)
    back = start(config(tmp_path, "back"))
    monkeypatch.undo()
    start(config(tmp_path, "by-hand", train__steps=4))
    by_hand = start(config(tmp_path, "by-hand", train__learning_rate=0.5e-3), resume=True)
    same_run(back.path, by_hand.path)


@pytest.mark.parametrize("dies_at", ["in a row", "going back", "after"])
def test_a_run_that_goes_back_can_be_killed_as_well(tmp_path, monkeypatch, dies_at):
    broken_in(monkeypatch, too_fast)
    start(config(tmp_path, "whole"))
    killed = []

    def dying(real: Any, when: Any) -> Any:
        def call(*args: Any) -> Any:
            if not killed and when(*args):
                killed.append(True)
                raise KilledError
            return real(*args)

        return call

    tell, back = online._tell, online.go_back
    if dies_at == "going back":
        monkeypatch.setattr(online, "go_back", lambda *args: (back(*args), dying(lambda: None, lambda: True)()))
    else:
        at = 7 if dies_at == "in a row" else 5
        lower = dies_at == "after"
        monkeypatch.setattr(
            online,
            "_tell",
            dying(tell, lambda _, r, *__: r.step == at and (r.learning_rate < 9e-4) == lower),
        )
    with pytest.raises(KilledError):
        start(config(tmp_path))
    assert start(config(tmp_path), resume=True).finished
    same_run(tmp_path / "whole", tmp_path / "run")


LOOP = """
def one(prompts, generate):
    return [{"ids": ids, "mask": [True] * len(ids)} for ids in generate([[] for _ in prompts])]
"""


@pytest.mark.parametrize("own", [False, True], ids=["sampler", "a loop of the user's own"])
def test_a_policy_that_gives_no_numbers_goes_back_at_once(tmp_path, monkeypatch, own):
    """The weights themselves are broken, and saved so, before anything shows it: the sampler finds out."""
    (tmp_path / "env.py").write_text(LOOP)
    changes = {"data__rollout": f"{tmp_path / 'env.py'}:one"} if own else {}
    real = online.take_step
    done = []

    def breaks(job: Any, state: Any, *rest: Any) -> None:
        real(job, state, *rest)
        if state.step == 4 and not done:
            done.append(True)
            with torch.no_grad():
                job.loaded.policy.head().weight.fill_(NAN)

    monkeypatch.setattr(online, "take_step", breaks)
    run = start(config(tmp_path, train__steps=6, **changes))
    assert run.finished
    (back,) = events(run.path, Rollback)
    assert (back.step, back.from_step) == (2, 4)
    assert "logits are not finite" in back.why
    assert [c.step for c in events(run.path, Checkpoint)] == [2, 4, 2, 4, 6]
    assert all(bool(w.isfinite().all()) for w in last_weights(run.path).values())


def test_it_gives_up_with_advice(tmp_path, monkeypatch):
    broken_in(monkeypatch, lambda step, _: step >= 5)
    with pytest.raises(RunError, match=r"after going back 3 times, at learning rate 0.000125.*run/bad.*--resume"):
        start(config(tmp_path))
    run = Run(tmp_path / "run")
    assert [(r.step, r.number) for r in events(run.path, Rollback)] == [(4, 1), (4, 2), (4, 3)]
    assert [c.path.name for c in run.checkpoints] == ["step-000002", "step-000004"], "nothing broken was saved"
    with pytest.raises(RunError, match="after going back 3 times"):
        start(config(tmp_path), resume=True)
    monkeypatch.undo()
    # Another learning rate is the person's own answer: it is taken as it is.
    mended = start(config(tmp_path, train__learning_rate=1e-4), resume=True)
    assert [s.learning_rate for s in mended.steps if s.learning_rate][-3:] == [1e-4] * 3


def test_broken_from_the_first_update_on(tmp_path, monkeypatch):
    broken_in(monkeypatch, lambda *_: True)
    with pytest.raises(RunError, match="no finite update was ever made"):
        start(config(tmp_path))
    assert checkpoint.newest(tmp_path / "run" / "checkpoints") == (None, [])


def test_a_step_with_several_updates_skips_the_bad_one_only(tmp_path, monkeypatch):
    calls = []
    real = torch.nn.utils.clip_grad_norm_

    def norm(parameters: Any, most: float) -> Any:
        calls.append(1)
        return torch.tensor(math.inf) if len(calls) == 2 else real(parameters, most)

    monkeypatch.setattr(learn.torch.nn.utils, "clip_grad_norm_", norm)
    run = start(config(tmp_path, train__steps=1, algorithm__minibatches=3))
    assert run.steps[0].updates_skipped == 1
    assert run.steps[0].loss is not None
    told = json.loads((run.path / "bad" / "step-000000.json").read_text())
    assert [(u["first"], u["last"], u["grad_norm"]) for u in told["updates"]] == [(1, 2, "inf")]


def test_last_good_is_before_the_row(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_fault", lambda path: None)
    for step in (2, 4, 6):
        (tmp_path / f"step-{step:06d}").mkdir()
    recovery = rollback.Recovery()
    assert rollback.last_good(tmp_path, 6, recovery) == 4, "nothing was computed from 6 yet"
    assert rollback.last_good(tmp_path, 7, recovery) == 6
    assert rollback.last_good(tmp_path, 7, recovery.after(1)) == 4, "step 6 was the first bad one"
    assert rollback.last_good(tmp_path, 5, rollback.Recovery(in_a_row=3)) is None
