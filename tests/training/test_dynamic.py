"""DAPO's dynamic sampling and overlong punishment, through the loop; and what is said of groups without spread."""

from dataclasses import asdict
from typing import Any

import pytest
from tests.training.small import OF_THE_MACHINE, events, settings, steps

from kleash.records import Step
from kleash.runlog import Notice, Sample, read
from kleash.training.api import start
from kleash.training.data import indices
from kleash.training.spread import ALL_FLAT, spread_notices
from kleash.training.toml import parse_config

PROMPTS = [f"t{3 + i} t{5 + i}{' t7' * (i % 3)}" for i in range(6)]
DAPO = {"kind": "dapo", "group_size": 4, "overlong": 0.0}


def run(directory, reward="easy", resume: Any = False, **changes):
    given = settings(directory, **{"algorithm": DAPO} | changes)
    given["rewards"] = [{"use": f"{directory / 'rewards.py'}:{reward}"}]
    given["train"]["checkpoint_every"] = 1
    del given["kl"]
    return start(parse_config(given), resume=resume)


def first_prompts(directory) -> list[list[str]]:
    """The prompts of each step, in order, from the sample log: one of each group of 4."""
    samples = [s for s in read(directory / "run" / "samples.jsonl") if isinstance(s, Sample)]
    found: dict[int, list[Any]] = {}
    for sample in samples:
        found.setdefault(sample.step, []).append(sample.prompt)
    return [rows[::4] for _, rows in sorted(found.items())]


def stream(steps: int) -> tuple[list[list[str]], list[int]]:
    """A slow walk along the stream of prompts: those with spread, in threes, and how many were drawn for each three."""
    place, kept, drawn = 0, [], []
    for _ in range(steps):
        three: list[str] = []
        began = place
        while len(three) < 3:
            prompt = PROMPTS[indices(place // 3, 3, 6, 0)[place % 3]]
            place += 1
            if "t7" not in prompt:
                three.append(prompt)
        kept.append(three)
        drawn.append(place - began)
    return kept, drawn


def figures(directory) -> list[dict[str, Any]]:
    return [{k: v for k, v in asdict(s).items() if k not in OF_THE_MACHINE} for s in steps(directory / "run")]


def test_groups_without_spread_are_replaced_in_the_streams_order(tmp_path):
    run(tmp_path)
    kept, drawn = stream(4)
    assert first_prompts(tmp_path)[:4] == kept
    assert [s.groups_drawn for s in steps(tmp_path / "run")] == [*drawn, None]  # the last one measures all prompts
    assert {s.groups_unreplaced for s in steps(tmp_path / "run")[:4]} == {0}
    assert sum(drawn) > 12
    # Scores are numbered within a call, so a replaced group's 0 pulls the mean of all below that of those kept.
    assert all(s.score_drawn < s.score for s in steps(tmp_path / "run")[:4])
    assert steps(tmp_path / "run")[0].groups_without_spread == 0


def test_a_resumed_run_goes_on_in_the_stream(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for directory in (whole, cut):
        directory.mkdir()
    run(whole)
    run(cut, train__steps=2)
    run(cut, resume=True)
    of = {f["step"]: f for f in figures(cut)}
    assert [of[f["step"]] for f in figures(whole)] == figures(whole)


def test_samples_of_the_same_prompt_drawn_twice_in_a_step_differ(tmp_path):
    run(tmp_path, train__steps=1)
    samples = [s for s in read(tmp_path / "run" / "samples.jsonl") if isinstance(s, Sample) and s.step == 0]
    by_group = [tuple(s.completion for s in samples[i : i + 4]) for i in range(0, 12, 4)]
    assert len({s.prompt for s in samples}) < 3  # only two prompts have spread
    assert len(set(by_group)) == 3


def test_a_batch_that_cannot_be_filled_says_so_once(tmp_path):
    run(tmp_path, reward="flat", algorithm=DAPO | {"max_draws": 2})
    found = [s for s in steps(tmp_path / "run") if s.groups_drawn is not None]
    assert [(s.groups_drawn, s.groups_unreplaced, s.groups_without_spread) for s in found] == [(6, 3, 1.0)] * 4
    assert [e.step for e in events(tmp_path / "run", Notice) if e.what == "groups_not_replaced"] == [0]


def test_steps_without_any_spread_are_said_once_for_a_stretch(tmp_path):
    run(tmp_path, reward="flat", algorithm={"kind": "grpo", "group_size": 4}, train__steps=7)
    said = [e for e in events(tmp_path / "run", Notice) if e.what == "no_spread"]
    assert [e.step for e in said] == [ALL_FLAT - 1]
    assert "(mean 1)" in said[0].text
    assert "larger algorithm.group_size" in said[0].text


@pytest.mark.parametrize(
    ("shares", "due"),
    [([1.0] * 4, []), ([1.0] * 5, [5]), ([1.0] * 4 + [0.9] + [1.0] * 6, [10]), ([None] * 9, []), ([1.0] * 9, [5])],
)
def test_when_a_stretch_without_spread_is_said(shares, due):
    history = [Step(step=i, beta=0.0, groups_without_spread=share) for i, share in enumerate(shares)]
    said = [n for n in range(1, len(history) + 1) if "no_spread" in spread_notices(history[:n])]
    assert said == due


def test_the_overlong_punishment_is_in_the_score_that_is_trained_on(tmp_path):
    run(tmp_path, reward="flat", algorithm=DAPO | {"overlong": 0.5, "max_draws": 1}, train__steps=1)
    step = steps(tmp_path / "run")[0]
    samples = [s for s in read(tmp_path / "run" / "samples.jsonl") if isinstance(s, Sample) and s.step == 0]
    punished = [1 - max(0, s.length - 4) / 4 for s in samples]  # at most 8 tokens, over the last half of them
    assert step.score == 1.0
    assert step.score_shaped == pytest.approx(sum(punished) / len(punished))
    assert step.score_shaped < 1
