"""Settings under which an algorithm is not defined are refused, with the reason and what would be right."""

import pytest

from kleash.algorithms import ALGORITHMS, GRPO, RLOO, Algorithm
from kleash.errors import UsageError

REFUSED = [
    ({"group_size": 1}, "the *other* completions", "at least 2"),
    ({"epochs": 0}, "epochs = 0", "at least 1"),
    ({"minibatches": 0}, "minibatches = 0", "at least 1"),
    ({"clip": 0.0}, "clip = 0.0", '"none" for no clip'),
    ({"clip": 1.0}, "clip = 1.0", "between 0 and 1"),
    ({"clip": -0.2}, "clip = -0.2", "between 0 and 1"),
    ({"prefix_cap": 0.5}, "prefix_cap = 0.5", "at least 1"),
    ({"off_policy": "full"}, "unclipped off-policy gradient", 'clip = "none"'),
]


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
@pytest.mark.parametrize(("settings", "reason", "alternative"), REFUSED)
def test_refused_settings(algorithm, settings, reason, alternative):
    with pytest.raises(UsageError) as refused:
        algorithm(**settings)
    assert reason in str(refused.value)
    assert alternative in str(refused.value)


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
def test_the_neighbours_of_what_is_refused_are_allowed(algorithm):
    algorithm(group_size=2, epochs=1, minibatches=1, clip=0.2, prefix_cap=1.0)
    algorithm(clip="none", off_policy="full")


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_is_one_and_names_its_gradient(kind):
    algorithm = ALGORITHMS[kind]()
    assert isinstance(algorithm, Algorithm)
    assert algorithm.kind == kind
    assert algorithm.label.startswith("the gradient of a sequence objective")


@pytest.mark.parametrize("settings", [{"std": "group"}, {"length": "token_mean"}, {"length": "sequence_mean"}])
def test_a_mode_that_is_no_sequence_gradient_says_so(settings):
    assert GRPO(**settings).label.startswith("not the gradient of a sequence KL")
