"""ReMax: the gradient through the real loop, enumerated; what its baseline is; and what a run with it leaves."""

from dataclasses import asdict

import pytest
import torch
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    EOS,
    PROMPT,
    SPACE,
    C,
    S,
    Setting,
    T,
    gradient,
    logits_of,
    objective,
    pairs,
    rollout_of,
    run_step,
    scores,
    singles,
    small_policy,
    token_logprobs,
)
from tests.training.small import OF_THE_MACHINE, settings, steps
from torch import Tensor

from kleash.algorithms import ReMax, Totals
from kleash.kl.penalties import Exact, InReward, NoPenalty
from kleash.models.load import load
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.runlog import Sample, read
from kleash.tensors import Batch, Look
from kleash.training.api import start
from kleash.training.toml import parse_config

REMAX = {"kind": "remax", "group_size": 2}


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@pytest.mark.parametrize(
    ("group_size", "penalty"),
    [(1, InReward()), (1, Exact()), pytest.param(2, Exact(), marks=pytest.mark.slow)],
    ids=["in_reward", "exact", "pairs exact"],
)
def test_gradient_through_the_loop(group_size, penalty, tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    truth = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    rollout = singles(policy) if group_size == 1 else pairs(policy)
    setting = Setting(ReMax(group_size=group_size), penalty)
    found = run_step(setting, policy, reference, rollout, tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


def likeliest(policy: Policy, prompt: list[int], end: int, length: int) -> list[int]:
    """Greedy decoding by the transformers model itself, one row, the whole text read anew at each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + length and (len(ids) == len(prompt) or ids[-1] != end):
        with torch.no_grad():
            ids.append(int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_the_baseline_is_the_score_of_the_greedy_completion(tmp_path, monkeypatch):
    """One sample, not weighted: its log-prob is pulled by how far it lies above the greedy one, to the last digit."""
    policy = small_policy(1)
    best = likeliest(policy, PROMPT, EOS, T)
    number = next(i for i in range(len(SPACE.ids)) if SPACE.ids[i][SPACE.mask[i]].tolist() == best)
    sample = (number + 7) % len(SPACE.ids)
    log_p = token_logprobs(logits_of(policy)).sum(1)
    truth = -gradient((scores()[sample] - scores()[number]) * log_p[sample], policy) / C
    with torch.no_grad():
        rollout = rollout_of(
            torch.tensor([sample]), token_logprobs(logits_of(policy)), torch.ones(1, dtype=torch.float64), 1
        )
    setting = Setting(ReMax(), NoPenalty(), beta=0.0)
    found = run_step(setting, policy, small_policy(2), rollout, tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


def test_a_sample_without_a_score_is_left_out():
    new = torch.full((2, T), -1.0, dtype=torch.float64, requires_grad=True)
    one = torch.ones(2, dtype=torch.float64)
    rollout = rollout_of(torch.tensor([S - 2, S - 1]), torch.zeros(S, T, dtype=torch.float64), one / 2, 1)
    batch = Batch(
        rollout,
        torch.tensor([2.0, 0.0], dtype=torch.float64),
        torch.tensor([True, False]),
        baseline=torch.tensor([0.5, 9.0], dtype=torch.float64),
    )
    loss = ReMax().loss(Look(new, torch.zeros_like(new)), batch, Totals(1, T, 2, 1.0), NoPenalty(), 0.0)
    found = torch.autograd.grad(loss.value, new)[0]
    pulled = torch.where(SPACE.mask[S - 2], -(2.0 - 0.5) / 2, 0.0).double()
    torch.testing.assert_close(found, torch.stack([pulled, torch.zeros_like(pulled)]), rtol=EXACT, atol=EXACT)


def run(directory, *rewards, resume=False, **changes):
    given = settings(directory, **{"algorithm": REMAX} | changes)
    given["rewards"] = [{"use": f"{directory / 'rewards.py'}:{name}"} for name in rewards]
    return start(parse_config(given), resume=resume)


def figures(directory):
    return [{k: v for k, v in asdict(s).items() if k not in OF_THE_MACHINE} for s in steps(directory / "run")]


def test_a_run_logs_the_greedy_score_and_trains_on_samples_alone(tmp_path):
    made = run(tmp_path, "even", "some", train__steps=1, train__prompts_per_step=6)
    first, last = made.steps
    # `some` gives None to every third completion it is asked for: two of six prompts have no greedy score.
    assert first.greedy_unscored == 2
    assert first.unscored == 4
    assert len([s for s in read(tmp_path / "run" / "samples.jsonl") if isinstance(s, Sample) and s.step == 0]) == 12
    assert last.greedy_unscored == 2


def test_the_logged_score_is_that_of_greedy_decoding(tmp_path):
    made = run(tmp_path, "even", train__steps=1, train__prompts_per_step=6, train__learning_rate=1e-9)
    loaded = load(ModelSpec(policy=str(tmp_path / "model")))
    prompts = (tmp_path / "prompts.txt").read_text().splitlines()
    total = 0.0
    for prompt in prompts:
        ids = loaded.tokenizer(prompt)["input_ids"]
        words = [loaded.tokenizer.decode([i]).strip() for i in likeliest(loaded.policy, ids, loaded.ends.pad_id, 8)]
        total += sum(int(word[1:]) % 2 == 0 for word in words if word[:1] == "t" and word[1:].isdigit()) / 8
    assert made.steps[0].score_greedy == pytest.approx(total / len(prompts))


@pytest.mark.slow
def test_a_resumed_run_ends_as_one_that_never_stopped(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for directory in (whole, cut):
        directory.mkdir()
    run(whole, "mixed")
    run(cut, "mixed", train__steps=2)
    run(cut, "mixed", resume=True)
    of = {f["step"]: f for f in figures(cut)}
    assert [of[f["step"]] for f in figures(whole)] == figures(whole)
    ends = [load(ModelSpec(policy=str(d / "run" / "checkpoints" / "step-000004"))).policy for d in (whole, cut)]
    for one, other in zip(*(end.state_dict().values() for end in ends), strict=True):
        assert torch.equal(one, other)


def test_shapes_act_on_the_baseline_too(tmp_path):
    """Sample and greedy completion score alike, before a shape and after it: nothing to learn."""
    for shape in ([], [{"kind": "clip", "at": 0.5}], [{"kind": "running"}]):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        given = settings(directory, algorithm=REMAX, train__steps=1)
        given["rewards"] = [{"use": f"{directory / 'rewards.py'}:flat", "shape": shape}]
        assert start(parse_config(given)).steps[0].grad_norm == 0
