"""How a step is cut into passes changes nothing, and what a step costs and measures is what is claimed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.tolerances import PATHS, PATHS_GRADIENT
from tests.training.small import OF_THE_MACHINE, settings, steps

from kleash.records import Step
from kleash.runlog import Sample, read
from kleash.training.api import start
from kleash.training.toml import parse_config


def run(tmp_path: Path, name: str, **changes: Any) -> list[Step]:
    start(parse_config(settings(tmp_path, **{"out": str(tmp_path / name), "train__steps": 2} | changes)))
    return steps(tmp_path / name)


def numbers(value: Any, prefix: str = "") -> dict[str, float]:
    """Every number in a record by its dotted name."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in numbers(item, f"{prefix}.{name}").items()}
    return {prefix: value} if isinstance(value, int | float) else {}


@pytest.mark.parametrize("algorithm", [{}, {"algorithm__minibatches": 3, "algorithm__epochs": 2}], ids=["one", "six"])
def test_passes_change_nothing(tmp_path, algorithm):
    # Gradients far below Adam's epsilon: its step is then proportional to them. As it is, it would turn the rounding
    # of a gradient that is 0 in theory into a whole step.
    algorithm = algorithm | {"train__max_grad_norm": 1e-10, "train__learning_rate": 10.0}
    whole = run(tmp_path, "whole", **algorithm)
    for size in (1, 2):
        parts = run(tmp_path, f"parts-{size}", train__groups_per_pass=size, **algorithm)
        for a, b in zip(whole, parts, strict=True):
            one, other = numbers(asdict(a)), numbers(asdict(b))
            assert one.keys() == other.keys()
            for name in one:
                if name.split(".")[1] not in (*OF_THE_MACHINE, "tokens_forward"):
                    tolerance = PATHS_GRADIENT if name in (".grad_norm", ".loss", ".price") else PATHS
                    assert other[name] == pytest.approx(one[name], rel=tolerance, abs=tolerance), name


@pytest.mark.parametrize("size", [None, 1])
def test_the_cost_of_a_pass(tmp_path, size):
    """At most N·P + N·G·T token positions in sampling, reference and update."""
    changes = {} if size is None else {"train__groups_per_pass": size}
    found = run(tmp_path, "run", **changes)
    tree = settings(tmp_path)
    N, G, T = tree["train"]["prompts_per_step"], tree["algorithm"]["group_size"], tree["train"]["max_new_tokens"]
    P = 4  # words of the longest prompt
    for step in found:
        for phase in ("sample", "reference", "update"):
            assert 0 < step.tokens_forward[phase] <= N * P + N * G * T, (step.step, phase)
        assert set(step.tokens_forward) <= {"sample", "reference", "update", "step_size"}


@pytest.mark.parametrize("kl", [{"beta": 0.0}, {"penalty": "none"}], ids=["beta 0", "no penalty"])
def test_the_kl_is_measured_where_it_is_not_punished(tmp_path, kl):
    tree = settings(tmp_path, train__learning_rate=1e-2)
    tree["kl"] = kl
    found = start(parse_config(tree)).steps
    assert [s.beta for s in found] == [0.0] * 5
    assert found[0].kl_ref is not None
    assert found[0].kl_ref.value == 0.0
    assert all(s.kl_ref is not None and s.kl_ref.value > 0 and s.kl_ref.estimator == "exact" for s in found[1:])


def test_samples_without_a_score_leave_the_loss(tmp_path):
    """None is not 0: the run equals one in which those samples' scores are anything else, and is not one with 0."""
    reward = tmp_path / "own.py"
    reward.write_text(
        "def none(completions, **columns):\n"
        "    return [None if i % 3 == 0 else len(c) / 20 for i, c in enumerate(completions)]\n"
        "def zero(completions, **columns):\n"
        "    return [0.0 if i % 3 == 0 else len(c) / 20 for i, c in enumerate(completions)]\n"
    )
    by_name = {
        name: run(tmp_path, name, rewards=[{"use": f"{reward}:{name}", "name": "r"}]) for name in ("none", "zero")
    }
    none, zero = by_name["none"], by_name["zero"]
    assert [s.unscored for s in none] == [4] * 3
    assert [s.unscored for s in zero] == [0] * 3
    seen = [s for s in read(tmp_path / "none" / "samples.jsonl") if isinstance(s, Sample) and s.step == 0]
    scores = [s.score for s in seen if s.score is not None]
    assert none[0].score == pytest.approx(sum(scores) / 8, rel=PATHS)
    assert none[0].loss != zero[0].loss
    assert json.dumps(asdict(none[0])["kl_ref"]) == json.dumps(asdict(zero[0])["kl_ref"])


def test_a_single_update_has_ratio_one_and_kl_old_every_tenth_step(tmp_path):
    found = run(tmp_path, "run", train__steps=11)
    assert all(s.clip_fraction == 0 and s.ratio_truncations == 0 for s in found[:-1])
    assert [s.step for s in found if s.kl_old is not None] == [0, 10]
