"""How old the weights are that drew a sample, in updates, by the time the sample moves the policy.

The first update of a step is made on samples of the weights it moves: 0. The k-th after it uses samples k updates old.
A rollout of the user's own may draw from older weights, and say so (`policy_step` of an episode): the updates of the
steps in between are added.
"""

import math
from collections.abc import Sequence

from kleash.errors import RunError
from kleash.records import Step
from kleash.tensors import Rollout


def check_policy_steps(rollout: Rollout, step: int) -> None:
    """Raises RunError for a sample of weights that are not there yet."""
    newest = -1 if rollout.policy_step is None else int(rollout.policy_step.max())
    if newest > step:
        raise RunError(
            f"data.rollout: an episode has policy_step = {newest}, and the run is at step {step}: give the number of "
            "the step whose weights drew it, which is that in the name of the checkpoint they come from"
        )


def staleness_figures(rollout: Rollout, history: Sequence[Step], updates: int) -> dict[str, float | int | None]:
    """As fields of `Step`, over the step's updates and samples; None where no update was made.

    history: the steps before this one.
    """
    if updates == 0:
        return {}
    drawn = [math.inf] if rollout.policy_step is None else rollout.policy_step.tolist()
    since = {first: sum(s.updates or 0 for s in history if s.step >= first) for first in set(drawn)}
    ages = [since[first] for first in drawn]
    return {"staleness": (updates - 1) / 2 + sum(ages) / len(ages), "staleness_max": updates - 1 + max(ages)}
