"""Ensembles: the paper's three formulas, their members' disagreement, and whose fault a failure was."""

import numpy as np
import pytest
from tests.tolerances import EXACT

from kleash.errors import RunError, UsageError
from kleash.rewards.ensembles import disagreement, disagreements, mean, uncertainty_weighted, worst_case
from kleash.rewards.load import load_reward
from kleash.rewards.score import score
from kleash.rewards.spec import RewardSpec

RNG = np.random.default_rng(0)

REWARDS = """
def length(completions): return [float(len(c)) for c in completions]
def vowels(completions): return [float(sum(x in 'aeiou' for x in c)) for c in completions]
def picky(completions): return [None if 'z' in c else 1.0 for c in completions]
def broken(completions): return [float('nan') if 'z' in c else 1.0 for c in completions]
"""
TEXTS = ["banana", "xyz", "aeiou"]


@pytest.fixture
def members(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.py").write_text(REWARDS)


def ensemble(*names: str, **settings):
    return load_reward(RewardSpec(tuple(f"./r.py:{name}" for name in names), **settings))


def scored(*names: str, **settings):
    return score([ensemble(*names, **settings)], ["p"] * 3, TEXTS, {})


def test_the_formulas_of_the_paper():
    """Mean, WCO and UWO by numpy, on random scores of five members."""
    for _ in range(20):
        s = RNG.normal(3, 2, 5)
        assert mean(s.tolist()) == pytest.approx(s.mean(), rel=EXACT)
        assert worst_case(s.tolist()) == s.min()
        truth = s.mean() - 0.3 * ((s - s.mean()) ** 2).mean()
        assert uncertainty_weighted(s.tolist(), 0.3) == pytest.approx(truth, rel=EXACT, abs=EXACT)


@pytest.mark.parametrize(
    ("settings", "truth"),
    [
        ({}, [4.5, 1.5, 5.0]),
        ({"combine": "mean"}, [4.5, 1.5, 5.0]),
        ({"combine": "min"}, [3.0, 0.0, 5.0]),
        ({"combine": "uwo"}, [4.5 - 0.1 * 2.25, 1.5 - 0.1 * 2.25, 5.0]),
        ({"combine": "uwo", "uwo_lambda": 1.0}, [2.25, -0.75, 5.0]),
    ],
)
def test_from_the_config_to_the_score(members, settings, truth):
    found = scored("length", "vowels", **settings)
    assert found.by_name == {"ensemble": pytest.approx(truth, rel=EXACT)}
    assert found.total == pytest.approx(truth, rel=EXACT)
    assert found.members == {"ensemble": [[6.0, 3.0, 5.0], [3.0, 0.0, 5.0]]}


def test_a_member_without_a_score_leaves_the_sample_without():
    assert disagreement([[1.0, None], [3.0, 5.0]]) == 1.0
    assert disagreement([[None], [3.0]]) is None


def test_disagreement_is_the_standard_deviation_between_members():
    s = RNG.normal(0, 1, (4, 7))
    assert disagreement(s.tolist()) == pytest.approx(s.std(axis=0).mean(), rel=EXACT)


def test_none_of_one_member(members):
    found = scored("length", "picky")
    assert found.total == [3.5, None, 3.0]


def test_nan_of_one_member_names_it_and_the_sample(members):
    with pytest.raises(RunError, match=r"reward 'both: \./r\.py:broken' gave nan .*sample 1 of 3 .*'xyz'"):
        scored("length", "broken", name="both")


def test_nan_of_one_of_several_rewards_names_it_and_the_sample(members):
    rewards = [load_reward(f"./r.py:{name}") for name in ("length", "broken")]
    with pytest.raises(RunError, match=r"reward 'broken' gave nan .*sample 1 of 3 .*'xyz'"):
        score(rewards, ["p"] * 3, TEXTS, {})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RewardSpec(("vader",)), "at least two different members"),
        (lambda: RewardSpec(("vader", "vader")), "at least two different members"),
        (lambda: RewardSpec("vader", combine="min"), "combine is for an ensemble"),
        (lambda: RewardSpec(("vader", "exact"), combine="min", uwo_lambda=1.0), "without combine"),
        (lambda: RewardSpec(("vader", "exact"), combine="uwo", uwo_lambda=-1.0), "must be 0 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()


def test_the_disagreement_on_each_sample():
    scores = RNG.normal(size=(3, 4))
    rows = [list(map(float, member)) for member in scores]
    assert disagreements(rows) == pytest.approx(np.std(scores, axis=0).tolist(), rel=EXACT)
    holed = [[None, *rows[0][1:]], *rows[1:]]
    assert disagreements(holed)[0] is None
    assert disagreement(holed) == pytest.approx(np.std(scores[:, 1:], axis=0).mean(), rel=EXACT)
