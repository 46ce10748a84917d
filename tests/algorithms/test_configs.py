"""Settings under which an algorithm is not defined are refused, with the reason and what would be right."""

import pytest

from kleash.algorithms import (
    ALGORITHMS,
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    OWN_PENALTY,
    PPO,
    RLOO,
    Algorithm,
    BestOfN,
    ReinforcePP,
    ReMax,
)
from kleash.algorithms.clip import ClipRange, sides
from kleash.errors import UsageError

REFUSED = [
    ({"group_size": 1}, "the *other* completions", "at least 2"),
    ({"epochs": 0}, "epochs = 0", "at least 1"),
    ({"minibatches": 0}, "minibatches = 0", "at least 1"),
    ({"clip": 0.0}, "clip = 0.0", '"none" for no clip'),
    ({"clip": 1.0}, "clip = 1.0", "between 0 and 1"),
    ({"clip": -0.2}, "clip = -0.2", "between 0 and 1"),
    ({"prefix_cap": 0.5}, "prefix_cap = 0.5", "at least 1"),
]
GROUP_RELATIVE = [GRPO, RLOO, GSPO, CISPO, DAPO, BestOfN]


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
@pytest.mark.parametrize(("settings", "reason", "alternative"), REFUSED)
def test_refused_settings(algorithm, settings, reason, alternative):
    with pytest.raises(UsageError) as refused:
        algorithm(**settings)
    assert reason in str(refused.value)
    assert alternative in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_draws": 0}, "must be at least 1, which replaces no group"),
        ({"overlong": 1.1}, "share of max_new_tokens"),
        ({"overlong": -0.1}, "share of max_new_tokens"),
    ],
)
def test_refused_settings_of_dapo(settings, reason):
    with pytest.raises(UsageError, match=reason):
        DAPO(**settings)


@pytest.mark.parametrize("algorithm", [GRPO, RLOO])
def test_the_full_off_policy_gradient_has_no_clip(algorithm):
    with pytest.raises(UsageError, match='unclipped off-policy gradient: set clip = "none"'):
        algorithm(off_policy="full")
    algorithm(clip="none", off_policy="full")


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.2), (1.1, 0.2), (0.2, 0.0), (-0.1, 0.2)])
def test_refused_clip_ranges(low, high):
    with pytest.raises(UsageError, match="low must lie above 0 and at most at 1, high above 0"):
        ClipRange(low=low, high=high)


def test_a_number_clips_both_sides_alike():
    assert sides(0.3) == (0.3, 0.3)
    assert sides(ClipRange(low=1.0, high=4.0)) == (1.0, 4.0)
    assert sides("none") is None


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
def test_the_neighbours_of_what_is_refused_are_allowed(algorithm):
    algorithm(group_size=2, epochs=1, minibatches=1, clip=0.2, prefix_cap=1.0)
    algorithm(clip=ClipRange(low=1.0, high=30.0))


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_is_one_and_names_its_gradient(kind):
    algorithm = ALGORITHMS[kind]()
    assert isinstance(algorithm, Algorithm)
    assert algorithm.kind == kind
    assert algorithm.label


PPO_REFUSED = [
    ({"group_size": 0}, "group_size = 0", "at least 1"),
    ({"clip_value": 0.0}, "clip_value = 0.0", '"none" for no clip'),
    ({"gamma": 1.1}, "gamma = 1.1", "at most 1"),
    ({"gamma": 0.0}, "gamma = 0.0", "above 0"),
    ({"gae_lambda": -0.1}, "gae_lambda = -0.1", "from 0 to 1"),
    ({"vf_coef": -1.0}, "vf_coef = -1.0", "at least 0"),
    ({"step_kl_limit": 0.0}, "0.0 nats/sequence", "above 0"),
    ({"off_policy": "full", "clip": "none"}, "whitening belongs to a step's", "whiten = false"),
    ({"off_policy": "full", "whiten": False}, "unclipped off-policy gradient", 'clip = "none"'),
    *(case for case in REFUSED if "group_size" not in case[0]),
]


@pytest.mark.parametrize(("settings", "reason", "alternative"), PPO_REFUSED)
def test_refused_settings_of_ppo(settings, reason, alternative):
    with pytest.raises(UsageError) as refused:
        PPO(**settings)
    assert reason in str(refused.value)
    assert alternative in str(refused.value)


def test_the_published_ppo_is_not_called_a_sequence_gradient():
    assert PPO().label.startswith("not the gradient of a sequence objective")
    true = {"gae_lambda": 1.0, "whiten": False}
    assert PPO(**true).label.startswith("the gradient of a sequence objective")
    for wrong in ({"gamma": 0.99}, {"gae_lambda": 0.95}, {"whiten": True}):
        assert PPO(**true | wrong).label.startswith("not the gradient of a sequence objective")


def test_refused_settings_of_reinforce_pp():
    with pytest.raises(UsageError, match="group_size = 0 must be at least 1"):
        ReinforcePP(group_size=0)
    with pytest.raises(UsageError, match=r"mean of the \*other\* completions"):
        ReinforcePP(baseline="group")
    ReinforcePP(baseline="group", group_size=2)


def test_refused_settings_of_remax():
    with pytest.raises(UsageError, match="group_size = 0 must be at least 1"):
        ReMax(group_size=0)
    with pytest.raises(UsageError, match=r"algorithm\.epochs = 0"):
        ReMax(epochs=0)


def test_every_own_penalty_is_of_an_algorithm():
    assert set(OWN_PENALTY) <= set(ALGORITHMS)


SEQUENCE = {"std": "none", "length": "constant"}


@pytest.mark.parametrize("algorithm", [GRPO, GSPO, CISPO, DAPO])
@pytest.mark.parametrize("settings", [{"std": "group"}, {"length": "token_mean"}, {"length": "sequence_mean"}])
def test_a_mode_that_is_no_sequence_gradient_says_so(algorithm, settings):
    assert algorithm(**SEQUENCE | settings).label.startswith("not the gradient of a sequence KL")
    assert algorithm(**SEQUENCE).label.startswith("the gradient of a sequence objective")
