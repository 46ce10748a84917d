"""PPO's gradient at the optimizer, through the real loop, enumerated: with γ = λ = 1 it is the objective's, for any V.

Groups of one: every sequence once, weighted by its probability. The critic's weights are random, and the truth knows
nothing of them; what its own loss adds is computed here from the transformers model's hidden states.
"""

import pytest
from tests.tolerances import LOOP
from tests.training.enumerated import (
    C,
    Setting,
    gradient,
    objective,
    run_step,
    scores,
    singles,
    small_policy,
)
from torch import Tensor

from kleash.algorithms import PPO
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
