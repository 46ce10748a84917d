"""PPO's adaptive penalty on the old policy: its gradient enumerated, its rule, and that a run keeps its coefficient."""

from dataclasses import replace

import pytest
import torch
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    C,
    Setting,
    gradient,
    logits_of,
    objective,
    run_step,
    scores,
    singles,
    small_policy,
    token_logprobs,
)
from tests.training.small import settings, steps

from kleash.algorithms import PPO, StepPenalty, StepPrice
from kleash.algorithms.step_penalty import LARGEST, SMALLEST
from kleash.errors import UsageError
from kleash.kl.penalties import Exact, NoPenalty
from kleash.records import Reading
from kleash.training.api import start
from kleash.training.passes import Update
from kleash.training.step_price import next_price, price_figures, priced
from kleash.training.toml import parse_config

PENALTY = StepPenalty(target="0.01 nats/sequence", beta=3.0)
#: PPO whose second update has the exact gradient: no clip, every ratio, values a baseline.
UNCLIPPED = PPO(epochs=2, gae_lambda=1.0, whiten=False, vf_coef=0.0, clip="none", clip_value="none", off_policy="full")


def _step(policy):
    random = torch.Generator().manual_seed(5)
    return [0.3 * torch.randn(p.shape, generator=random, dtype=p.dtype) for p in policy.trainable()]


@pytest.mark.parametrize("penalty", [Exact(), NoPenalty()], ids=["leashed", "free"])
def test_gradient_of_a_second_update(penalty, tmp_path, monkeypatch):
    """−∇[E R − β KL(policy‖reference)] / C + β_old ∇KL(old‖policy) / C, both of whole sequences, far from the old."""
    old, moved, reference = small_policy(1, critic="head"), small_policy(1, critic="head"), small_policy(2)
    move = _step(old)
    with torch.no_grad():
        for parameter, delta in zip(moved.trainable(), move, strict=True):
            parameter.add_(delta)
    log_old, log_new = token_logprobs(logits_of(old)).sum(1).detach(), token_logprobs(logits_of(moved)).sum(1)
    kl_old = (log_old.exp() * (log_old - log_new)).sum()
    assert kl_old > 0.05  # a step worth the name, in nats per sequence
    beta = 0.0 if isinstance(penalty, NoPenalty) else BETA
    truth = gradient(3.0 * kl_old - objective(moved, reference, beta, scores()), moved) / C

    setting = Setting(replace(UNCLIPPED, step_penalty=PENALTY), penalty, moves=[move])
    seen = run_step(setting, old, reference, singles(old), tmp_path, monkeypatch).seen
    assert (seen[1] - truth).norm() / truth.norm() < LOOP
    # At the first update the policy is the old one, and the penalty pulls at nothing.
    again = small_policy(1, critic="head")
    free = run_step(Setting(UNCLIPPED, penalty), again, reference, singles(again), tmp_path, monkeypatch)
    assert (seen[0] - free.seen[0]).norm() / free.seen[0].norm() < LOOP


def reading(value: float, tokens: int = 40) -> Reading:
    return Reading(
        kind="kl_old", value=value, unit="nats/sequence", estimator="k3", n_prompts=4, n_sequences=8, n_tokens=tokens
    )


@pytest.mark.parametrize(
    ("value", "factor"),
    [(0.0151, 2.0), (0.0149, 1.0), (0.01, 1.0), (0.0067, 1.0), (0.0066, 0.5), (0.0, 0.5), (float("inf"), 2.0)],
)
def test_the_rule_by_cases(value, factor):
    assert PENALTY.moved(StepPrice(3.0), reading(value)) == StepPrice(3.0 * factor)
    # 8 sequences of 5 tokens each: a fifth of it per token.
    per_token = replace(PENALTY, target="0.002 nats/token")
    assert per_token.moved(StepPrice(3.0), reading(value)) == StepPrice(3.0 * factor)


def test_nothing_measured_moves_nothing():
    assert PENALTY.moved(StepPrice(3.0, 2), None) == StepPrice(3.0, 2)


def test_bounds_are_met_and_counted():
    assert PENALTY.moved(StepPrice(LARGEST), reading(1.0)) == StepPrice(LARGEST, 1)
    assert PENALTY.moved(StepPrice(SMALLEST, 4), reading(0.0)) == StepPrice(SMALLEST, 5)
    assert PENALTY.moved(StepPrice(SMALLEST, 4), reading(1.0)) == StepPrice(2 * SMALLEST, 4)


def test_the_price_goes_into_the_update_and_out_of_it():
    update = Update(algorithm=PPO(step_penalty=PENALTY), penalty=Exact(), length=8)
    assert priced(update, None) is update
    later = priced(update, StepPrice(12.0))
    assert later.algorithm == PPO(step_penalty=replace(PENALTY, beta=12.0))
    assert next_price(update, None, reading(1.0)) == StepPrice(6.0)
    assert next_price(later, StepPrice(12.0), reading(1.0)) == StepPrice(24.0)
    assert price_figures(later, StepPrice(24.0, 1)) == {"step_beta": 12.0, "step_beta_clipped": 1}
    plain = Update(algorithm=PPO(), penalty=Exact(), length=8)
    assert next_price(plain, None, reading(1.0)) is None
    assert price_figures(plain, None) == {"step_beta": None, "step_beta_clipped": None}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"step_penalty": {"target": "0.01"}}, "has no unit"),
        ({"step_penalty": {"target": "0.01 nats/token", "beta": 0}}, "between 1e-06 and 1e+06"),
        ({"step_penalty": {"target": "0.01 nats/token"}, "epochs": 1}, "set epochs or minibatches above 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, said, tmp_path):
    with pytest.raises(UsageError) as refused:
        parse_config(settings(tmp_path, algorithm={"kind": "ppo"} | wrong))
    assert said in str(refused.value)


def test_a_run_moves_its_coefficient_and_resumes_with_it(tmp_path):
    ppo = {"kind": "ppo", "clip": "none", "step_penalty": {"target": "1e-4 nats/token", "beta": 0.5}}
    changes = {"algorithm": ppo, "train__learning_rate": 1e-2}
    start(parse_config(settings(tmp_path, **changes)))
    start(parse_config(settings(tmp_path, **changes | {"train__steps": 2, "out": str(tmp_path / "parts")})))
    start(parse_config(settings(tmp_path, **changes | {"out": str(tmp_path / "parts")})), resume=True)
    whole, parts = steps(tmp_path / "run"), steps(tmp_path / "parts")
    assert [s.step_beta for s in whole[:3]] == [0.5, 1.0, 2.0]  # every step goes further than so low a target
    assert [(s.step_beta, s.loss, s.score) for s in whole] == [(s.step_beta, s.loss, s.score) for s in parts]
    assert whole[-1].step_beta is None  # the finished policy is measured, not updated
    assert whole[0].step_beta_clipped == 0


def test_a_dear_step_is_a_short_one(tmp_path):
    def moved(beta: float) -> float:
        ppo = {"kind": "ppo", "clip": "none", "step_penalty": {"target": "9 nats/token", "beta": beta}}
        out = tmp_path / f"beta-{beta}"
        start(
            parse_config(
                settings(
                    tmp_path, algorithm=ppo, out=str(out), train__learning_rate=1e-2, train__steps=1, kl={"beta": 0}
                )
            )
        )
        return steps(out)[0].kl_old.value

    assert moved(1e4) < 0.5 * moved(1e-4)


def test_k3_of_the_old_policy_is_what_the_loss_adds():
    old = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    new = torch.tensor([[-1.5, -1.0]], dtype=torch.float64)
    ratio = (new - old).exp()
    torch.testing.assert_close(PENALTY.terms(old, new), 3.0 * (ratio - 1 - ratio.log()), rtol=EXACT, atol=0)
