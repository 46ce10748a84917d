"""What is said of groups without spread: steps without a reward gradient, and a batch that could not be filled."""

from collections.abc import Sequence

from kleash.records import Step

#: Steps in a row in which no group has spread, after which it is said, once for each such stretch.
ALL_FLAT = 5


def spread_notices(history: Sequence[Step]) -> dict[str, str]:
    """Notices due after the last step: by what they are about, the sentence."""
    said: dict[str, str] = {}
    flat = [step.groups_without_spread == 1 for step in history[-ALL_FLAT - 1 :]]
    if len(flat) >= ALL_FLAT and all(flat[-ALL_FLAT:]) and not (len(flat) > ALL_FLAT and flat[0]):
        score = history[-1].score
        said["no_spread"] = (
            f"for {ALL_FLAT} steps in a row all completions of each prompt had equal scores"
            f"{'' if score is None else f' (mean {score:.3g})'}: the reward teaches nothing, and only the KL moves the "
            "policy. Use prompts of which some completions succeed and some fail, a reward with more than two values, "
            "a larger algorithm.group_size or a higher train.temperature"
        )
    now, before = history[-1], history[-2] if len(history) > 1 else None
    if now.groups_unreplaced and not (before and before.groups_unreplaced):
        said["groups_not_replaced"] = (
            f"{now.groups_unreplaced} groups without spread stay in this step's batch: {now.groups_drawn} were drawn, "
            "the most that algorithm.max_draws allows. They have no reward gradient. Use prompts that are neither too "
            "hard nor too easy for the policy, or raise algorithm.max_draws."
        )
    return said
