"""The tail of the reward in a run: measured once, near the reference, on what is trained on."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tolerances import EXACT
from tests.training.small import events, settings, steps

from kleash.records import Reading, Step
from kleash.rewards.tail import tail_test
from kleash.runlog import Notice
from kleash.training.api import start
from kleash.training.tailwatch import ENOUGH, TailWatch, watch_tail
from kleash.training.toml import parse_config

RNG = np.random.default_rng(0)
NEAR = Reading(
    kind="kl_ref", value=0.05, unit="nats/sequence", estimator="exact", n_prompts=8, n_sequences=64, n_tokens=640
)
STEP = Step(step=0, beta=0.1, kl_ref=NEAR)
FAR = replace(STEP, kl_ref=replace(NEAR, value=0.2))


def test_scores_gather_until_there_are_enough():
    scores = RNG.standard_cauchy(ENOUGH).tolist()
    watch = TailWatch()
    for first in range(0, ENOUGH, 64):
        found = watch_tail(watch, STEP, [*scores[first : first + 64], None])
        watch = TailWatch.of(found.watch.plain())
        assert bool(found.figures) == (first + 64 == ENOUGH)
    truth = tail_test(scores)
    assert truth is not None
    assert found.figures["index"] == pytest.approx(truth.index, rel=EXACT)
    assert found.warning is not None
    assert "Hill index" in found.warning
    assert watch == TailWatch(over=True)
    assert watch_tail(watch, STEP, scores).figures == {}


def test_a_light_tail_is_measured_and_not_warned_of():
    found = watch_tail(TailWatch(), STEP, RNG.normal(0, 1, ENOUGH).tolist())
    assert found.figures["n"] == ENOUGH
    assert found.warning is None


@pytest.mark.parametrize("record", [FAR, replace(STEP, kl_ref=None)])
def test_far_from_the_reference_nothing_is_said(record):
    found = watch_tail(TailWatch((1.0,) * 200), record, RNG.standard_cauchy(ENOUGH).tolist())
    assert found == (TailWatch(over=True), {}, None)


@pytest.mark.parametrize(("shape", "warned"), [([], True), (["sigmoid"], False)])
def test_a_run_warns_of_the_reward_as_it_is_trained_on(tmp_path, shape, warned):
    tree = settings(tmp_path, train__steps=2, algorithm__group_size=50)  # 150 samples a step
    file = tmp_path / "rewards.py"
    with file.open("a") as more:
        more.write("\ndef wild(completions):\n    return np.random.standard_cauchy(len(completions))\n")
    tree["rewards"] = [{"use": f"{file}:wild", "shape": shape}]
    start(parse_config(tree))
    assert [bool(step.tail) for step in steps(tmp_path / "run")] == [False, True, False]
    assert [n.step for n in events(tmp_path / "run", Notice) if n.what == "heavy_tail"] == [1] * warned
