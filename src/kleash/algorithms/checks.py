"""Invariants that the algorithms' configs share."""

from kleash.algorithms.clip import Clip, check_clip
from kleash.errors import UsageError


def check_group_relative(
    group_size: int, epochs: int, minibatches: int, clip: Clip, prefix_cap: float, off_policy: str
) -> None:
    """Raises UsageError for a setting under which the algorithm is not defined.

    Source: leave-one-out needs another member.
    Proved by: tests/algorithms/test_configs.py::test_refused_settings
    """
    if group_size < 2:
        raise UsageError(
            f"algorithm.group_size = {group_size}: the baseline is the mean of the *other* completions of a prompt, so "
            "a group needs at least 2"
        )
    check_updates(epochs, minibatches, clip, prefix_cap, off_policy)


def check_updates(epochs: int, minibatches: int, clip: Clip, prefix_cap: float, off_policy: str) -> None:
    """Raises UsageError for updates that are not defined.

    Source: PPO's clip range lies in (0, 1); the ratio of an unmoved policy is 1.
    Proved by: tests/algorithms/test_configs.py::test_refused_settings
    """
    if epochs < 1 or minibatches < 1:
        raise UsageError(f"algorithm.epochs = {epochs} and minibatches = {minibatches} must be at least 1")
    check_clip(clip)
    if prefix_cap < 1:
        raise UsageError(f"algorithm.prefix_cap = {prefix_cap} must be at least 1, the ratio of an unmoved policy")
    if off_policy == "full" and clip != "none":
        raise UsageError('algorithm.off_policy = "full" is the unclipped off-policy gradient: set clip = "none" too')
