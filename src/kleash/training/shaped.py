"""From a step's raw scores to the shaped ones that the policy is trained on, and what that has to remember."""

from collections.abc import Sequence
from typing import NamedTuple

from kleash.errors import RunError
from kleash.rewards.chain import ShapeMemory, reference_samples, shaped
from kleash.rewards.load import Rewarder
from kleash.rewards.score import Scored, score, totals
from kleash.rewards.shaping import Numbers, Samples
from kleash.tensors import Rollout
from kleash.training.job import Job
from kleash.training.rolling import Asked, roll

#: The step in the key of the reference's samples: no training step's nor evaluation's, so that they are nobody else's.
REFERENCE_STEP = -2


class Drawn(NamedTuple):
    """A step's samples. numbers: those of its prompts in the data."""

    numbers: list[int]
    rollout: Rollout
    completions: list[str]


class ShapedScores(NamedTuple):
    """scored: after the shapes. by_name: of the rewards that have one. clipped: how many scores a clip bounded."""

    scored: Scored
    by_name: dict[str, Numbers]
    clipped: dict[str, int]
    memory: ShapeMemory


def shape(job: Job, memory: ShapeMemory, drawn: Drawn, scored: Scored) -> ShapedScores:
    """Every reward's shapes over its scores of a step. The memory of the next step is in what is returned.

    Raises:
        RunError: a reward fails on the reference's samples, or a shaped total is too large for a float.
    """
    having = [rewarder for rewarder in job.rewarders if rewarder.shape]
    if not having:
        return ShapedScores(scored, {}, {}, memory)
    reference = with_reference(job, having, memory.reference, drawn.numbers)
    rows = drawn.rollout.group.tolist()
    by_name, clipped, moments = {}, {}, dict(memory.moments)
    for rewarder in having:
        name = rewarder.name
        samples = Samples(
            completions=drawn.completions,
            lengths=drawn.rollout.mask.sum(1).tolist(),
            group=rows,
            reference=[reference.get(drawn.numbers[n], {}).get(name, []) for n in rows],
        )
        by_name[name], moments[name], clipped[name] = shaped(
            rewarder.shape, scored.by_name[name], samples, moments.get(name, ())
        )
    every = {**scored.by_name, **by_name}
    total = totals(job.rewarders, every)
    if all(value is None for value in total):
        raise RunError(
            "no sample has a shaped score, so there is nothing to learn from: the rewards gave None for the "
            "reference's completions of these prompts, or for the policy's. Return a number wherever it can be judged"
        )
    counts = {name: count for name, count in clipped.items() if count is not None}
    return ShapedScores(Scored(total, every), by_name, counts, ShapeMemory(moments, reference))


def with_reference(
    job: Job, rewarders: Sequence[Rewarder], known: dict[int, dict[str, Numbers]], index: Sequence[int]
) -> dict[int, dict[str, Numbers]]:
    """`known`, with the reference's scores of the prompts of this step that are not in it yet."""
    wanted = {r.name: count for r in rewarders if (count := reference_samples(r.shape))}
    new = [
        i for i in dict.fromkeys(index) if any(len(known.get(i, {}).get(name, ())) < n for name, n in wanted.items())
    ]
    if not new:
        return known
    asking, M = [r for r in rewarders if r.name in wanted], max(wanted.values())
    prompts, columns = job.prompts.take(new, M)
    with job.reference.running() as policy:
        rolled = roll(job, policy, Asked(prompts, columns, new, M, of_policy=False), REFERENCE_STEP)
    found = score(asking, prompts, rolled.texts, rolled.columns, trial=True).by_name
    return known | {i: {name: s[n * M : (n + 1) * M] for name, s in found.items()} for n, i in enumerate(new)}
