"""The score of each prompt's likeliest completion, for algorithms that take it as their baseline. Never trained on."""

from dataclasses import replace
from typing import NamedTuple

from kleash.rewards.chain import ShapeMemory
from kleash.rewards.score import Scored, score
from kleash.training.careful import Careful
from kleash.training.dynamic import Sampled
from kleash.training.job import Job
from kleash.training.rolling import Asked, Rolled, roll
from kleash.training.shaped import Drawn, shape

#: The step in the key of the noise, which decides between equally likely tokens alone: one that nothing else has.
GREEDY_STEP = -3


class Greedy(NamedTuple):
    """One entry for each prompt. scores: the raw totals. baseline: what is taken off the scores that are trained on.

    A prompt whose greedy completion has no score has the mean of the others', or 0 where none has one: any number will
    do that does not depend on the prompt's own samples.
    """

    scores: list[float | None]
    baseline: list[float]


def rolled_greedily(job: Job, drawn: Sampled, by_plan: Careful) -> Rolled:
    """The likeliest completion of each of the step's prompts, by the run's own sampling or the user's own loop."""
    asking = replace(job, sampling=job.sampling.greedy)
    asked = Asked(*job.prompts.take(drawn.numbers, 1), drawn.numbers, 1)
    trained = job.update.algorithm.group_size
    return by_plan.sampling(
        lambda plan: roll(asking, job.loaded.policy, asked, GREEDY_STEP, plan.for_groups_of(1, trained).sampled)
    )


def scored_greedily(job: Job, drawn: Sampled, rolled: Rolled) -> Scored:
    """The raw scores of `rolled`. That some, or all, have none proves nothing.

    Raises:
        RunError: a reward failed.
    """
    prompts, _ = job.prompts.take(drawn.numbers, 1)
    return score(job.rewarders, prompts, rolled.texts, rolled.columns, trial=True)


def baselines(job: Job, memory: ShapeMemory, drawn: Sampled, rolled: Rolled, scored: Scored) -> Greedy:
    """`memory`: the moments from before the step, so that they do not depend on its samples either."""
    trained = scored.total
    if any(total is not None for total in scored.total):
        trained = shape(job, memory, Drawn(drawn.numbers, rolled.rollout, rolled.texts), scored).scored.total
    known = [total for total in trained if total is not None]
    mean = sum(known) / len(known) if known else 0.0
    return Greedy(scored.total, [mean if total is None else total for total in trained])
