"""A rollout whose own engine draws the tokens: its log-probs and the age of its weights are read, checked and told."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerances import FP32
from tests.training.enumerated import EOS, small_policy
from tests.training.small import OF_THE_MACHINE, settings, steps
from transformers import AutoModelForCausalLM, AutoTokenizer

from kleash.errors import KleashError, RunError
from kleash.models.sampling import Sampling
from kleash.models.stopping import Ends
from kleash.models.turns import Episode, Key, Turns
from kleash.records import Step
from kleash.runlog import Sample, read
from kleash.tensors import merged
from kleash.training.api import start
from kleash.training.staleness import check_policy_steps, staleness_figures
from kleash.training.toml import parse_config

#: Eight tokens, each as likely as the others, by numpy's generator, which a resume restores.
ENGINE = """
import math
import numpy as np

def uniform(prompts, **columns):
    drawn = np.random.randint(3, 11, (len(prompts), 6)).tolist()
    return [{"ids": ids, "mask": [True] * 6, "logprobs": [-math.log(8)] * 6, "policy_step": 0} for ids in drawn]

def told_what(prompts, generate, **change):
    return [{"ids": [5, 6], "mask": [True, False], **CHANGE} for _ in prompts]

def some(prompts, generate):
    told = [{"ids": [5], "mask": [True], "logprobs": [-1.0]} for _ in prompts]
    return told[:1] + [e | {"policy_step": 0} for e in told[1:]]
"""


def home(tmp_path: Path, function: str, change: str = "{}", **changes) -> dict:
    tree = settings(tmp_path, data__rollout=f"{tmp_path / 'env.py'}:{function}", **changes)
    (tmp_path / "env.py").write_text(ENGINE.replace("CHANGE", change))
    return tree


def records(run: Path) -> list[dict]:
    return [{k: v for k, v in asdict(step).items() if k not in OF_THE_MACHINE} for step in steps(run)]


def first_ratios(run: Path, model: Path) -> torch.Tensor:
    """policy/engine of each token of the first step, from the texts in the log by transformers alone."""
    policy, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    found = []
    for sample in [e for e in read(run / "samples.jsonl") if isinstance(e, Sample) and e.step == 0]:
        ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (sample.prompt, sample.completion)]
        with torch.no_grad():
            logits = policy(input_ids=torch.tensor([[*ids[0], *ids[1]]])).logits[0].double().log_softmax(-1)
        rows = logits[len(ids[0]) - 1 : -1]
        found.append(rows.gather(-1, torch.tensor(ids[1])[:, None])[:, 0].exp() * 8)
    return torch.cat(found)


CORRECTED: dict[str, Any] = {
    "train__mismatch": {"kind": "masked", "level": "token", "cap": 1.5},
    "train__learning_rate": 0.02,
}


def test_its_log_probs_and_the_age_of_its_weights_are_told(tmp_path):
    changes: dict[str, Any] = CORRECTED | {"algorithm__epochs": 2, "algorithm__minibatches": 3, "train__steps": 3}
    run = start(parse_config(home(tmp_path, "uniform", **changes))).path
    found: list[Any] = steps(run)
    ratios = first_ratios(run, tmp_path / "model")
    assert found[0].kl_sampler.value == pytest.approx(float(-ratios.log().mean()), rel=FP32)
    assert found[0].kl_sampler_k3.value == pytest.approx(float((ratios - 1 - ratios.log()).mean()), rel=FP32)
    assert found[0].sampler_ratio_max == pytest.approx(float(ratios.max()), rel=FP32)
    outside = (ratios < 1 / 1.5) | (ratios > 1.5)
    assert found[0].mismatch_fraction == pytest.approx(float(outside.double().mean()))
    assert [s.updates for s in found[:3]] == [6] * 3
    assert [(s.staleness, s.staleness_max) for s in found] == [(2.5, 5), (8.5, 11), (14.5, 17), (None, None)]


def test_nothing_is_corrected_unless_asked(tmp_path):
    found: list[Any] = steps(start(parse_config(home(tmp_path, "uniform", train__steps=1))).path)
    assert found[0].kl_sampler.value > 1
    assert found[0].mismatch_fraction is None


def test_own_sampler_agrees_and_its_samples_are_as_old_as_the_update(tmp_path):
    changes = {"algorithm__epochs": 3, "train__steps": 2, "train__mismatch": {"kind": "masked"}}
    for step in steps(start(parse_config(settings(tmp_path, **changes))).path)[:2]:
        assert step.sampler_ratio_max == pytest.approx(1, abs=FP32)
        assert step.mismatch_fraction == 0.0
        assert (step.staleness, step.staleness_max) == (1.0, 2)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tmp_path):
    whole = start(parse_config(home(tmp_path, "uniform", out=str(tmp_path / "whole"), **CORRECTED))).path
    config = home(tmp_path, "uniform", out=str(tmp_path / "cut"), **CORRECTED)
    run = start(parse_config(config)).path
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    third = next(i for i, event in enumerate(read(run / "events.jsonl")) if isinstance(event, Step) and event.step == 2)
    (run / "events.jsonl").write_text("".join(lines[:third]))
    for left in (run / "checkpoints").iterdir():
        if left.name == "step-000004":
            left.rename(tmp_path / "gone")
    start(parse_config(config), resume=True)
    assert records(run) == records(whole)


WRONG = [
    ("{'logprobs': [-1.0]}", "one number for each of its 2 ids"),
    ("{'logprobs': 'none'}", "one number for each of its 2 ids"),
    ("{'logprobs': [0.5, 0.0]}", "counts token 0 with the log-prob 0.5"),
    ("{'logprobs': [float('nan'), 0.0]}", "log-prob nan"),
    ("{'logprobs': [None, 0.0]}", "log-prob None"),
    ("{'logprobs': [float('-inf'), 0.0]}", "log-prob -inf"),
    ("{'logprobs': [-1.0, None], 'policy_step': -1}", "must be the number of a step, and it is -1"),
    ("{'logprobs': [-1.0, None], 'policy_step': 'last'}", "must be the number of a step"),
    ("{'logprobs': None}", "which generate did not draw"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_what_is_wrong_is_said_before_the_first_step(tmp_path, change, said):
    with pytest.raises(KleashError, match=said):
        start(parse_config(home(tmp_path, "told_what", change)))
    assert not (tmp_path / "run" / "events.jsonl").exists()


def test_ages_belong_to_all_or_to_none(tmp_path):
    with pytest.raises(RunError, match="some episodes have a policy_step"):
        start(parse_config(home(tmp_path, "some")))


def test_an_engine_cannot_stand_for_the_reference(tmp_path):
    tree = home(tmp_path, "uniform", train__steps=1)
    tree["rewards"][0]["shape"] = ["centre"]
    with pytest.raises(RunError, match="reference's own completions"):
        start(parse_config(tree))


def test_weights_of_the_future_are_refused(tmp_path):
    with pytest.raises(RunError, match="policy_step = 3, and the run is at step 0"):
        start(parse_config(home(tmp_path, "told_what", "{'logprobs': [-1.0, 0], 'policy_step': 3}")))


# ── its episodes as a rollout ───────────────────────────────────────────────────────────────────────────────


def rollout_of(*episodes: Episode) -> Any:
    turns = Turns(
        small_policy(1), [[3, 0, 4]], Sampling(max_new_tokens=3), Ends((EOS,), EOS), group_size=len(episodes),
        key=Key(0, 0, [0]),
    )  # fmt: skip
    return turns.rollout(episodes)


def test_what_it_drew_is_taken_at_its_word():
    found = rollout_of(
        Episode([1, 3, EOS], [True, False, True], [-0.5, 0.0, -0.25], 4),
        Episode([1, 3, 4], [True, True, True], [-0.5, -1.0, -2.0], 2),
        Episode([1], [True], [-0.5], 3),
    )
    assert found.sampler.tolist() == [[-0.5, 0.0, -0.25], [-0.5, -1.0, -2.0], [-0.5, 0.0, 0.0]]
    assert found.truncated.tolist() == [False, True, False]
    assert found.policy_step.tolist() == [4, 2, 3]
    again: Any = merged([found, found], EOS)
    assert again.policy_step.tolist() == [4, 2, 3] * 2
    assert again.groups(1, 2).policy_step.tolist() == [4, 2, 3]


def test_ages_are_updates_in_between():
    history = [Step(step=n, beta=0.1, updates=taken) for n, taken in enumerate((4, 2, 0, 5))]
    drawn = rollout_of(Episode([1], [True], [-0.5], 1), Episode([1], [True], [-0.5], 4))
    check_policy_steps(drawn, 4)
    with pytest.raises(RunError, match="policy_step = 4"):
        check_policy_steps(drawn, 3)
    # Of the first sample 2 + 0 + 5 updates, of the second none; then 0, 1, 2 within the step.
    assert staleness_figures(drawn, history, 3) == {"staleness": 1 + 3.5, "staleness_max": 2 + 7}
    assert staleness_figures(drawn, history, 0) == {}
    own = rollout_of(Episode([1], [True], [-0.5]))
    assert own.policy_step is None
    assert staleness_figures(own, history, 1) == {"staleness": 0, "staleness_max": 0}
    assert torch.equal(own.mask, torch.tensor([[True]]))
