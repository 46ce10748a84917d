"""Trained to convergence, algorithms end where theory says: at the posterior, or where their charge is stationary."""

import pytest
import torch
from tests.tabular import sequence_logprobs
from tests.training.tabular_loop import (
    ALGORITHMS,
    BETA,
    FORWARD,
    REFERENCE,
    REVERSE,
    REWARD,
    SPACE,
    WHOLE,
    Tabular,
    backwards,
    converged,
    forward_per_position,
    kl,
    posterior,
    reverse_per_position,
    sampled,
    std_by_group,
)

from kleash.algorithms import GRPO, PPO, RLOO

#: The promise is 1e-3 nats; what is left after the exact steps is far less.
PROMISED, CONVERGED = 1e-3, 1e-8
CASES = [
    *((algorithm, "exact") for algorithm in ALGORITHMS),
    ("rloo", "in_reward"),
    ("ppo, lambda 0.95, not whitened", "future_sampled"),
]


def test_the_start_is_far_from_everywhere():
    start = Tabular().logits.detach()
    ends = [posterior()[0], sequence_logprobs(REFERENCE, SPACE), backwards(forward_per_position), std_by_group()]
    assert min(kl(start, end) for end in ends) > 0.3


@pytest.mark.parametrize(("algorithm", "penalty"), CASES)
def test_reaches_the_posterior(algorithm, penalty):
    log_posterior, log_z = posterior()
    found = converged(ALGORITHMS[algorithm], WHOLE[penalty])
    assert kl(found, log_posterior) < CONVERGED
    log_ratio = sequence_logprobs(found, SPACE) - sequence_logprobs(REFERENCE, SPACE)
    # β log(π/ref) = R − β log Z at every sequence, not on average alone.
    assert (BETA * log_ratio - (REWARD - BETA * log_z)).abs().max() < PROMISED


@pytest.mark.parametrize("penalty", ["in_loss exact", "in_loss k3"])
def test_without_the_kl_to_come_it_stops_elsewhere(penalty):
    log_posterior, _ = posterior()
    found = converged(RLOO(group_size=2), REVERSE[penalty])
    assert kl(found, backwards(reverse_per_position)) < CONVERGED
    assert kl(found, log_posterior) > PROMISED


@pytest.mark.parametrize("algorithm", ["grpo", "ppo, lambda 1, not whitened"])
def test_a_forward_kl_stops_elsewhere_again(algorithm):
    log_posterior, _ = posterior()
    (penalty,) = FORWARD.values()
    found = converged(ALGORITHMS[algorithm], penalty)
    assert kl(found, backwards(forward_per_position)) < CONVERGED
    assert kl(found, log_posterior) > 10 * PROMISED


def test_std_by_group_forgets_the_reward():
    log_posterior, _ = posterior()
    found = converged(GRPO(group_size=2, std="group"), WHOLE["exact"])
    assert kl(found, std_by_group()) < CONVERGED
    assert kl(found, log_posterior) > 100 * PROMISED


def test_the_solvers_give_distributions():
    for log_p in (posterior()[0], backwards(reverse_per_position), backwards(forward_per_position), std_by_group()):
        assert float(log_p.exp().sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    "algorithm",
    [RLOO(group_size=4), PPO()],
    ids=["rloo", "ppo with its defaults"],
)
def test_the_sampled_loop_gets_there_too(algorithm):
    generator = torch.Generator().manual_seed(0)
    groups = 1024 // algorithm.group_size
    found = converged(algorithm, WHOLE["exact"], lambda p: sampled(p, groups, algorithm.group_size, generator))
    assert kl(found, posterior()[0]) < PROMISED
