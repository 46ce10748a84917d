"""PPO's gradient at the optimizer, through the real loop, enumerated: with γ = λ = 1 it is the objective's, for any V.

Groups of one: every sequence once, weighted by its probability. The critic's weights are random, and the truth knows
nothing of them; what its own loss adds is computed here from the transformers model's hidden states.
"""

from dataclasses import replace

import pytest
from tests.tolerances import LOOP
from tests.training.enumerated import (
    BETA,
    C,
    Setting,
    gradient,
    objective,
    run_step,
    scores,
    singles,
    small_policy,
)
from tests.training.off_policy import move, moved_policy, size_for
from tests.training.test_gradient import WEIGHTS, weighted_truth
from torch import Tensor

from kleash.algorithms import PPO, ReinforcePP, ReMax
from kleash.kl.penalties import Exact, FutureSampled, InReward, NoPenalty

#: The settings under which PPO's gradient is that of a sequence objective.
TRUE = PPO(epochs=1, gae_lambda=1.0, whiten=False, vf_coef=0.0, clip="none", clip_value="none")
PENALTIES = {"exact": Exact(), "in_reward": InReward(), "future_sampled": FutureSampled(), "none": NoPenalty()}


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


def taken(setting, tmp_path, monkeypatch, *, critic="head") -> tuple[Tensor, Tensor]:
    """(the gradient at the optimizer, −∇J / C) of a policy with a random critic and another reference."""
    policy, reference = small_policy(1, lora=setting.lora, critic=critic), small_policy(2)
    beta = 0.0 if isinstance(setting.penalty, NoPenalty) else setting.beta
    truth = -gradient(objective(policy, reference, beta, scores()), policy) / C
    return run_step(setting, policy, reference, singles(policy), tmp_path, monkeypatch).seen[0], truth


@pytest.mark.parametrize("critic", ["head", "separate"])
@pytest.mark.parametrize("penalty", PENALTIES)
def test_gradient_through_the_loop(penalty, critic, tmp_path, monkeypatch):
    found, truth = taken(Setting(TRUE, PENALTIES[penalty]), tmp_path, monkeypatch, critic=critic)
    assert relative(found, truth) < LOOP


def test_gradient_with_lora(tmp_path, monkeypatch):
    found, truth = taken(Setting(TRUE, Exact(), lora=True), tmp_path, monkeypatch, critic="separate")
    assert relative(found, truth) < LOOP


def test_gradient_with_accumulation(tmp_path, monkeypatch):
    found, truth = taken(Setting(TRUE, Exact(), groups_per_pass=17), tmp_path, monkeypatch)
    assert relative(found, truth) < LOOP


@pytest.mark.parametrize(
    "algorithm", [TRUE, ReinforcePP(whiten=False, clip="none"), ReMax()], ids=["ppo", "reinforce++", "remax"]
)
def test_weighted_penalty_has_the_gradient_of_the_weighted_kl(algorithm, tmp_path, monkeypatch):
    """Weights by token, in the advantage and in the own term: a token has credit to take for its own weight."""
    critic = "head" if algorithm is TRUE else None
    policy, reference = small_policy(1, critic=critic), small_policy(2)
    setting = Setting(algorithm, Exact(), token_weight=WEIGHTS)
    found = run_step(setting, policy, reference, singles(policy), tmp_path, monkeypatch).seen[0]
    assert relative(found, weighted_truth(policy, reference)) < LOOP
    plain = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    assert relative(found, plain) > 1e-2


def test_weighted_penalty_is_exact_off_policy_too(tmp_path, monkeypatch):
    """The second update, every advantage computed anew with every ratio."""
    size = size_for(0.13)
    moved = moved_policy(size)
    policy, reference, there = (small_policy(seed, critic="head") for seed in (1, 2, 1))
    there.load_state_dict(moved.state_dict() | {k: v for k, v in there.state_dict().items() if "critic" in k})
    algorithm = replace(TRUE, epochs=2, off_policy="full")
    deltas = move(moved, size)
    deltas += [p.new_zeros(p.shape) for p in policy.trainable()[len(deltas) :]]
    setting = Setting(algorithm, Exact(), moves=[deltas], token_weight=WEIGHTS)
    found = run_step(setting, policy, reference, singles(policy), tmp_path, monkeypatch).seen[1]
    assert relative(found, weighted_truth(there, reference)) < LOOP
