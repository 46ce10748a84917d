"""Shapes in the real loop: what is trained on, what is logged, and what a resumed run remembers."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import build
from tests.tolerances import EXACT
from tests.training.small import OF_THE_MACHINE, settings, steps

from kleash.errors import RunError
from kleash.models.load import load
from kleash.models.spec import ModelSpec
from kleash.rewards.chain import ShapeMemory
from kleash.runlog.schema import Evaluation
from kleash.training import checkpoint, online
from kleash.training import shaped as shaping
from kleash.training.api import start
from kleash.training.data import as_prompts
from kleash.training.setup import build_job
from kleash.training.shaped import with_reference
from kleash.training.toml import parse_config

MORE = """
import math

def squashed(completions, **columns):
    return [1 / (1 + math.exp(-min(max(s, -0.4), 0.4) / 0.5)) for s in even(completions)]

def length(completions, **columns):
    return [float(len(c.split())) for c in completions]

def not_three(completions, **columns):
    # The reference gives one completion to each of a step's three prompts.
    return [None] * 3 if len(completions) == 3 else even(completions)

def odd(completions, **columns):
    return [None if not c else 1.0 - s for c, s in zip(completions, even(completions))]
"""


def config(home: Path, rewards: list[dict[str, Any]], **changes: Any) -> Any:
    """A run with these rewards of tests/training/small.py and of MORE."""
    tree = settings(home, **changes)
    file = home / "rewards.py"
    if "squashed" not in file.read_text():
        file.write_text(file.read_text() + MORE)
    tree["rewards"] = [
        r | {"use": f"{file}:{r['use']}" if isinstance(r["use"], str) else [f"{file}:{use}" for use in r["use"]]}
        for r in rewards
    ]
    return parse_config(tree)


def weights(run: Path) -> dict[str, torch.Tensor]:
    path, _ = checkpoint.newest(run / "checkpoints")
    assert path is not None
    return dict(load(ModelSpec(policy=str(path))).policy.state_dict())


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_shaped_run_trains_as_one_whose_reward_is_written_shaped(tmp_path):
    shape = [{"kind": "clip", "at": 0.4}, {"kind": "sigmoid", "scale": 0.5}]
    start(config(tmp_path, [{"use": "even", "shape": shape}], out=str(tmp_path / "shaped")))
    start(config(tmp_path, [{"use": "squashed"}], out=str(tmp_path / "written")))
    start(config(tmp_path, [{"use": "even"}], out=str(tmp_path / "raw")))
    shaped, written, raw = (steps(tmp_path / name) for name in ("shaped", "written", "raw"))
    assert same(tmp_path / "shaped", tmp_path / "written")
    assert not same(tmp_path / "shaped", tmp_path / "raw")
    for s, w in zip(shaped, written, strict=True):
        assert (s.loss, s.groups_without_spread) == (w.loss, w.groups_without_spread)
        assert s.score_shaped == w.score
        assert (w.score_shaped, w.scores_shaped, w.scores_clipped) == (None, {}, {})
        assert s.scores_shaped == {"even": s.score_shaped}
    assert shaped[0].scores == raw[0].scores  # raw stays raw
    assert sum(s.scores_clipped["even"] for s in shaped) > 0


def test_weights_come_after_shapes(tmp_path):
    clip = [{"kind": "clip", "at": 0.25}]
    rewards = [{"use": "even", "shape": clip, "weight": 3.0}, {"use": "length", "weight": -0.5}]
    start(config(tmp_path, rewards, train__steps=1))
    step = steps(tmp_path / "run")[0]
    assert step.scores_shaped.keys() == {"even"}
    total = 3 * step.scores_shaped["even"] - 0.5 * step.scores["length"]
    assert step.score_shaped == pytest.approx(total, rel=EXACT, abs=EXACT)
    assert step.score == pytest.approx(3 * step.scores["even"] - 0.5 * step.scores["length"], rel=EXACT, abs=EXACT)


def test_length_correlation_and_disagreement_are_those_of_the_samples(tmp_path):
    start(config(tmp_path, [{"use": ["even", "odd"], "combine": "min"}], train__steps=1))
    step = steps(tmp_path / "run")[0]
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["event"] == "sample" and row["step"] == 0 and row["score"] is not None]
    truth = np.corrcoef([row["score"] for row in rows], [row["length"] for row in rows])[0, 1]
    assert step.score_length_correlation == pytest.approx(truth, rel=EXACT)
    even = np.array([sum(int(w[1:]) % 2 == 0 for w in row["completion"].split()) / 8 for row in rows])
    assert step.disagreement == {"ensemble": pytest.approx(np.std([even, 1 - even], axis=0).mean(), rel=EXACT)}


# ── the reference's scores ──────────────────────────────────────────────────────────────────────────────

CENTRED = [{"use": "even", "shape": [{"kind": "centre", "samples": 2}, "running"]}]


def never(completions: list[str]) -> list[float]:
    raise AssertionError("called again for what is known")


@pytest.mark.parametrize("lora", [False, True], ids=["frozen copy", "adapter off"])
def test_reference_scores_do_not_move_with_the_policy(tmp_path, lora):
    changes = {"model__adapter": {"rank": 2}} if lora else {}
    made = config(tmp_path, CENTRED, **changes)
    prompts = as_prompts((tmp_path / "prompts.txt").read_text().splitlines())
    job = build_job(made, prompts, made.rewards)
    before = with_reference(job, job.rewarders, {}, [1, 4])
    with torch.no_grad():
        for parameter in job.loaded.policy.trainable():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = with_reference(job, job.rewarders, {}, [1, 4])
    assert before == after
    assert before.keys() == {1, 4}
    assert all(len(scores["even"]) == 2 for scores in before.values())
    # by one at a time, and known ones are not asked for again
    one = with_reference(job, job.rewarders, {}, [4])
    assert one[4] == before[4]
    silent = replace(job, rewarders=[replace(r, fn=never) for r in job.rewarders])
    assert with_reference(silent, silent.rewarders, before, [1, 4]) is before


def test_a_reference_that_has_no_score_is_said(tmp_path):
    with pytest.raises(RunError, match=r"no sample has a shaped score.*the reference's completions"):
        start(config(tmp_path, [{"use": "not_three", "shape": ["centre"]}]))


class KilledError(Exception):
    pass


def test_a_resumed_run_remembers_moments_and_reference_scores(tmp_path, monkeypatch):
    start(config(tmp_path, CENTRED, out=str(tmp_path / "whole")))
    tell = online._tell

    def die(state: Any, record: Any, *rest: Any) -> None:
        if record.step == 3:
            raise KilledError
        tell(state, record, *rest)

    monkeypatch.setattr(online, "_tell", die)
    with pytest.raises(KilledError):
        start(config(tmp_path, CENTRED))
    monkeypatch.undo()
    start(config(tmp_path, CENTRED), resume=True)
    one, other = (
        [{k: v for k, v in asdict(s).items() if k not in OF_THE_MACHINE} for s in steps(tmp_path / name)]
        for name in ("whole", "run")
    )
    assert one == other
    assert same(tmp_path / "whole", tmp_path / "run")


def test_without_the_memory_it_would_not(tmp_path, monkeypatch):
    """The test above could not see a run that forgets if forgetting changed nothing."""
    start(config(tmp_path, CENTRED, out=str(tmp_path / "whole")))
    of = ShapeMemory.of
    monkeypatch.setattr(ShapeMemory, "of", classmethod(lambda cls, plain: of({"moments": {}, "reference": {}})))
    start(config(tmp_path, CENTRED, train__steps=2))
    start(config(tmp_path, CENTRED), resume=True)
    assert not same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("other", ["prompts", "reference"])
def test_scores_of_other_prompts_or_another_reference_are_forgotten(tmp_path, monkeypatch, other):
    """They are kept by prompt number: resumed by force, each prompt would be compared with another one's scores."""
    seen: list[dict[int, Any]] = []
    real = shaping.with_reference

    def kept(job: Any, rewarders: Any, known: Any, index: Any) -> Any:
        seen.append(dict(known))
        return real(job, rewarders, known, index)

    monkeypatch.setattr(shaping, "with_reference", kept)
    start(config(tmp_path, CENTRED, train__steps=2))
    start(config(tmp_path, CENTRED, train__steps=3), resume=True)
    assert seen[-2], "the same ones are remembered"
    seen.clear()
    changes: dict[str, Any] = {"train__steps": 4}
    if other == "prompts":
        prompts = tmp_path / "prompts.txt"
        prompts.write_text("".join(reversed(prompts.read_text().splitlines(True))))
    else:
        small = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
        changes["model__reference"] = str(build.checkpoint(tmp_path / "other", seed=5, **small))
    start(config(tmp_path, CENTRED, **changes), resume=True, force=True)
    assert seen[0] == {}


def test_an_ensemble_judges_held_out_prompts(tmp_path):
    made = config(tmp_path, [{"use": ["even", "odd"]}], data__held_out=str(tmp_path / "prompts.txt"), train__steps=1)
    run = start(made)
    found = [event for event in run.events if isinstance(event, Evaluation)]
    assert found
    assert all(event.score == pytest.approx(0.5, rel=EXACT) for event in found)
