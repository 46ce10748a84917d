"""The bench of the demo's claims: what counts, and that a claim that fails is told."""

import pytest
from benchmarks.demo_seeds import CLAIMS, FREE, Base, Seed, Verdict, judge, page

from kleash.demo.grammar import corpus
from kleash.demo.run import BASE, HELD, LEASHES
from kleash.report.compare import Row

NOTES = corpus(8, seed=0)  # the grammar's own: fluency 1


def seed(number: int, *, free_fluency: float, held_fluency: float, held_reward: float) -> Seed:
    """The base scores 0.2 and the unleashed run 1.0: the gain is 0.8."""
    fluency = dict.fromkeys(LEASHES, 1.0) | {BASE: 1.0, FREE: free_fluency, HELD: held_fluency}
    reward = dict.fromkeys(LEASHES, 0.9) | {BASE: 0.2, FREE: 1.0, HELD: held_reward}
    rows = {label: Row(run=label, reward=reward[label], kl=1.0, fluency=fluency[label]) for label in fluency}
    return Seed(number, rows, NOTES)


@pytest.mark.parametrize(
    ("free_fluency", "held_fluency", "held_reward", "verdict"),
    [
        (0.49, 0.91, 0.61, Verdict(True, True, True)),
        (0.51, 0.91, 0.61, Verdict(False, True, True)),
        (0.49, 0.89, 0.61, Verdict(True, False, True)),
        (0.49, 0.91, 0.59, Verdict(True, True, False)),
    ],
)
def test_each_claim_by_itself(free_fluency: float, held_fluency: float, held_reward: float, verdict: Verdict) -> None:
    one = seed(0, free_fluency=free_fluency, held_fluency=held_fluency, held_reward=held_reward)
    assert judge(one, Base(reward=0.2, fluency=1.0, samples=64)) == verdict


def test_nine_of_ten_are_enough_and_eight_are_not() -> None:
    good = [seed(i, free_fluency=0.1, held_fluency=0.95, held_reward=0.8) for i in range(8)]
    bad = [seed(i, free_fluency=0.1, held_fluency=0.5, held_reward=0.8) for i in (8, 9)]
    text, failed = page([*good, good[0], bad[0]], steps=100)
    assert failed == [] and f"| {CLAIMS[1]} | 9 of 10 seeds |" in text
    _, failed = page([*good, *bad], steps=100)
    assert failed == [f"{CLAIMS[1]}: 8 of 10"]
