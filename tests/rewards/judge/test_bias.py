"""Position bias and intervals: planted biases, closed forms, and how often an interval covers the truth."""

import math
import random

import pytest
from tests.tolerances import EXACT

from kleash.intervals import Z95, wilson
from kleash.rewards.judge.bias import agreement, position_bias

PLANTED = 0.2


def biased(n: int, seed: int) -> tuple[list[float], list[float], list[int]]:
    """A judge of n pairs that takes the first answer in a fifth of them, whatever it is; a is better in half of all."""
    chance = random.Random(seed)
    first, second = [], []
    for _ in range(n):
        better = chance.random() < 0.5
        by_place = chance.random() < PLANTED
        first.append(1.0 if by_place else float(better))
        second.append(0.0 if by_place else float(better))
    return first, second, list(range(n))


def test_a_planted_bias_is_found_and_the_interval_covers_it():
    covered, found = 0, []
    for seed in range(400):
        bias = position_bias(*biased(200, seed))
        assert bias is not None
        covered += bias.low <= PLANTED <= bias.high
        found.append(bias.value)
    assert abs(sum(found) / 400 - PLANTED) < 4 * math.sqrt(PLANTED * (1 - PLANTED) / 200 / 400)
    assert 0.92 <= covered / 400 <= 0.98


def test_the_standard_error_is_that_of_the_mean_where_prompts_differ():
    first, second, prompts = biased(50, 3)
    d = [a - b for a, b in zip(first, second, strict=True)]
    m = sum(d) / 50
    bias = position_bias(first, second, prompts)
    assert bias is not None
    assert bias.standard_error == pytest.approx(math.sqrt(sum((x - m) ** 2 for x in d) / 49 / 50), rel=EXACT)
    assert (bias.high - bias.low) / 2 == pytest.approx(Z95 * bias.standard_error, rel=EXACT)


def test_pairs_of_one_prompt_are_not_so_many_pairs():
    first, second, prompts = biased(40, 5)
    alone = position_bias(first, second, prompts)
    ten = position_bias(first * 10, second * 10, prompts * 10)
    assert alone is not None
    assert ten is not None
    assert ten.standard_error == pytest.approx(alone.standard_error, rel=EXACT)
    assert ten.n == 400


@pytest.mark.parametrize(("first", "second", "value"), [(1.0, 0.0, 1.0), (0.7, 0.7, 0.0)])
def test_judges_that_always_say_the_same_are_not_certain(first, second, value):
    bias = position_bias([first] * 20, [second] * 20, range(20))
    assert bias is not None
    assert bias.value == value
    assert bias.low < value <= bias.high
    assert bias.high <= 1


def test_without_pairs_nothing_was_measured():
    assert position_bias([], [], []) is None
    assert agreement([]) is None


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 17), (95, 100)])
def test_agreement_has_wilsons_interval(k, n):
    inside = agreement([True] * k + [False] * (n - k))
    assert inside is not None
    assert (inside.low, inside.high) == wilson(k / n, n)
