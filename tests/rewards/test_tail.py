"""The tail test: Hill's estimator against its known distribution, and how often the warning is right or wrong."""

import math

import numpy as np
import pytest
from tests.tolerances import EXACT

from kleash.rewards.tail import FEWEST, hill, tail_test

N, RUNS = 256, 150
RNG = np.random.default_rng(0)


def alarms(draw) -> float:
    """Share of RUNS samples of size N that are called heavy."""
    found = [tail_test(draw().tolist()) for _ in range(RUNS)]
    assert None not in found
    return sum(tail.heavy for tail in found if tail is not None) / RUNS


def test_hill_by_hand():
    """x = 8, 4, 2, 1: (log 8/2 + log 4/2) / 2 = 1.5 log 2 with k = 2."""
    assert hill([1.0, 8.0, 2.0, 4.0], 2) == pytest.approx(1.5 * math.log(2), rel=EXACT)


def test_hill_on_pareto_samples():
    """k·hill/ξ is Gamma(k, 1): mean k, variance k; its sum over 400 samples is within 4 standard errors."""
    k, xi, runs = 50, 0.4, 400
    found = np.array([k / xi * hill((RNG.pareto(1 / xi, 500) + 1).tolist(), k) for _ in range(runs)])
    assert abs(found.mean() - k) < 4 * math.sqrt(k / runs)
    assert abs(found.var() / k - 1) < 4 * math.sqrt((2 + 6 / k) / runs)  # kurtosis of Gamma(k): 3 + 6/k


def test_false_alarms_and_what_is_found():
    """Light and bounded rewards are never warned of, an exponential one at the named rate, power laws mostly."""
    assert alarms(lambda: RNG.normal(3, 2, N)) == 0
    assert alarms(lambda: RNG.uniform(-1, 1, N)) == 0
    assert alarms(lambda: np.clip(RNG.normal(0.6, 0.5, N), -1, 1)) == 0  # VADER's kind: bounded, piled up at the end
    assert alarms(lambda: RNG.poisson(5, N).astype(float)) == 0  # counts of words
    assert alarms(lambda: RNG.exponential(1, N)) <= 4 / RUNS  # 0.005 × 150 = 0.75 expected; P(> 4) = 0.001
    assert alarms(lambda: RNG.standard_cauchy(N)) > 0.95
    assert alarms(lambda: RNG.lognormal(0, 2, N)) > 0.95
    assert alarms(lambda: RNG.pareto(1, N)) > 0.9


def test_the_log_shape_makes_a_power_law_light():
    assert alarms(lambda: np.log1p(RNG.pareto(1, N))) <= 4 / RUNS


def test_neither_scale_nor_origin_matter():
    scores = RNG.standard_cauchy(N)
    one, other = tail_test(scores.tolist()), tail_test((8 * scores - 64).tolist())
    assert one is not None
    assert other is not None
    assert one.index == pytest.approx(other.index, rel=EXACT)
    assert one.low < one.index < one.high
    assert one.p == other.p


@pytest.mark.parametrize("scores", [[], [1.0] * 500, [0.0, 1.0] * (FEWEST - 1), [1.0] * 300 + [0.0] * 100])
def test_too_little_to_say(scores):
    assert tail_test(scores) is None
