"""Dual ascent finds the Lagrange multiplier of a constrained problem that is solved here by other means."""

import math

import pytest
from benchmarks.controllers import reading
from tests.tolerances import LOOP, PRINTED

from kleash.beta import Dual
from kleash.records import Target

REFERENCE = (0.4, 0.3, 0.2, 0.09, 0.01)
REWARD = (0.0, 0.5, 0.2, 1.0, 3.0)


def optimum(beta: float) -> tuple[float, float]:
    """(E reward, KL to the reference) of the best policy at this beta, ref·exp(reward/beta)."""
    weights = [p * math.exp(r / beta) for p, r in zip(REFERENCE, REWARD, strict=True)]
    policy = [weight / math.fsum(weights) for weight in weights]
    reward = math.fsum(p * r for p, r in zip(policy, REWARD, strict=True))
    return reward, math.fsum(p * math.log(p / q) for p, q in zip(policy, REFERENCE, strict=True))


def beta_at(kl: float) -> float:
    """The beta whose best policy is at this KL, by bisection."""
    low, high = 1e-2, 1e2
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if optimum(middle)[1] > kl else (low, middle)
    return low


@pytest.mark.parametrize("limit", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("first", [0.05, 20.0])
def test_multiplier_of_a_solved_problem(limit: float, first: float) -> None:
    """max E[reward] with KL ≤ limit: beta ends where the constraint binds, and is the reward per nat at the limit."""
    law, target = Dual(rate=0.1), Target(limit, "nats/sequence")
    state = law.init(first)
    for _ in range(600):
        state = law.update(state, reading(optimum(state.beta)[1]), target)
    assert math.isclose(state.beta, beta_at(limit), rel_tol=LOOP)

    (more, _), (less, _) = optimum(beta_at(limit * 1.001)), optimum(beta_at(limit * 0.999))
    price = (more - less) / (0.002 * limit)
    assert math.isclose(state.beta, price, rel_tol=PRINTED)


def test_a_constraint_that_does_not_bind_lets_the_multiplier_go_to_its_bound() -> None:
    law = Dual()
    state = law.init(0.05)
    for _ in range(1000):
        state = law.update(state, reading(0.01), Target(50.0, "nats/sequence"))
    assert state.beta == law.beta_min
