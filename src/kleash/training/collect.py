"""The first half of a step: sample, score, and the reference's states. Nothing here moves a weight."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from kleash.algorithms import NeedsGreedy, PunishesLength, ReplacesGroups
from kleash.models.counting import TokenCounter
from kleash.models.plan import Plan
from kleash.rewards.chain import ShapeMemory
from kleash.rewards.score import Scored, score
from kleash.rewards.shaping import plus, soft_overlong
from kleash.tensors import Batch, ReferenceStates, Rollout
from kleash.training.careful import Careful
from kleash.training.data import indices
from kleash.training.dynamic import Draws, Sampled, mean_score, together
from kleash.training.gauges import Collected
from kleash.training.greedy import Greedy, baselines, rolled_greedily, scored_greedily
from kleash.training.job import Job, Progressing
from kleash.training.passes import spans
from kleash.training.rolling import Asked, roll
from kleash.training.shaped import Drawn, ShapedScores, shape
from kleash.training.staleness import check_policy_steps


class Clock:
    """Seconds by phase, and the token counter's phase with it."""

    def __init__(self, counter: TokenCounter) -> None:
        self.seconds: dict[str, float] = {}
        self._counter = counter

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        with self._counter.phase(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


def collect(job: Job, state: Progressing, clock: Clock, by_plan: Careful) -> tuple[Collected, Batch]:
    """Sample, score, shape, and the reference's states."""
    drawn, draws = _filled(job, state, clock, by_plan)
    check_policy_steps(drawn.rollout, state.step)
    with clock.phase("shape"):
        shaped = shape(job, state.shaping, Drawn(drawn.numbers, drawn.rollout, drawn.texts), drawn.scored)
        shaped = _punished(job, shaped, drawn.rollout)
    greedy = _greedy(job, ShapeMemory(state.shaping.moments, shaped.memory.reference), drawn, clock, by_plan)
    with clock.phase("reference"):
        states = by_plan(partial(reference_states, job, drawn.rollout))
    collected = Collected(
        rollout=drawn.rollout,
        prompts=drawn.prompts,
        completions=drawn.completions,
        texts=drawn.texts,
        scored=drawn.scored,
        shaped=shaped,
        mismatch=job.sampling.mismatch,
        draws=draws,
        greedy=None if greedy is None else greedy.scores,
        classes=None if job.classes is None else job.classes[drawn.rollout.completion_ids],
    )
    return collected, _batch(drawn.rollout, shaped.scored, states, greedy)


def _filled(job: Job, state: Progressing, clock: Clock, by_plan: Careful) -> tuple[Sampled, Draws | None]:
    """The step's groups. Where the algorithm replaces those without spread, until enough are left or the cap is met.

    The measurement after the last step is of the prompts as they come.
    """
    algorithm, want = job.update.algorithm, job.config.train.prompts_per_step
    most = algorithm.max_draws if isinstance(algorithm, ReplacesGroups) and state.step < job.config.train.steps else 1
    kept: list[Sampled] = []
    flat: list[Sampled] = []
    drawn = 0
    while len(kept) < want and drawn < most * want:
        place = state.step * want + state.redrawn + drawn
        fresh = _sampled(job, place, min(want - len(kept), most * want - drawn), clock, by_plan)
        drawn += len(fresh.numbers)
        if most == 1 and len(fresh.numbers) == want:
            return fresh, None
        for one in map(fresh.group, range(len(fresh.numbers))):
            (kept if one.has_spread or most == 1 else flat).append(one)
    unreplaced = max(want - len(kept), 0)
    batch = together([*kept, *flat[len(flat) - unreplaced :]], job.loaded.ends.pad_id)
    return batch, None if most == 1 else Draws(drawn, unreplaced, mean_score([*kept, *flat]))


def _sampled(job: Job, place: int, count: int, clock: Clock, by_plan: Careful) -> Sampled:
    """At most `count` groups from a place in the stream of prompts on, to the end of a batch, in which none repeats."""
    train, G = job.config.train, job.update.algorithm.group_size
    batch, first = divmod(place, train.prompts_per_step)
    index = indices(batch, train.prompts_per_step, len(job.prompts), train.seed)[first : first + count]
    prompts, columns = job.prompts.take(index, G)
    with clock.phase("sample"):
        asked = Asked(prompts, columns, index, G)
        rolled = by_plan.sampling(lambda plan: roll(job, job.loaded.policy, asked, batch, plan.sampled))
        by_plan.keep_to(rolled.together)
    with clock.phase("score"):
        scored = score(job.rewarders, prompts, rolled.texts, rolled.columns)
    return Sampled(index, list(prompts), rolled.rollout, rolled.completions, rolled.texts, scored)


def _greedy(job: Job, memory: ShapeMemory, drawn: Sampled, clock: Clock, by_plan: Careful) -> Greedy | None:
    """The likeliest completions' scores, where the algorithm takes them as its baseline."""
    if not isinstance(job.update.algorithm, NeedsGreedy):
        return None
    with clock.phase("sample"):
        rolled = rolled_greedily(job, drawn, by_plan)
    with clock.phase("score"):
        scored = scored_greedily(job, drawn, rolled)
    with clock.phase("shape"):
        return baselines(job, memory, drawn, rolled, scored)


def _punished(job: Job, shaped: ShapedScores, rollout: Rollout) -> ShapedScores:
    """With the punishment of overlong completions, where the algorithm has one."""
    algorithm, limit = job.update.algorithm, job.sampling.max_new_tokens
    if not (isinstance(algorithm, PunishesLength) and algorithm.overlong):
        return shaped
    cache = max(1, round(algorithm.overlong * limit))
    added = [soft_overlong(n, limit, cache) for n in rollout.mask.sum(1).tolist()]
    return shaped._replace(scored=replace(shaped.scored, total=plus(shaped.scored.total, added)))


def reference_states(job: Job, rollout: Rollout, plan: Plan) -> ReferenceStates:
    """In the passes of the update, so that both sides run in the same shapes and step 0 is exactly 0."""
    how = job.of_reference(plan)
    parts = [
        job.reference.states(rollout.groups(first, last), how.path, how.rows)
        for first, last in spans(rollout.n_prompts, how.groups or rollout.n_prompts)
    ]
    return _joined(parts, rollout)


def _joined(parts: list[ReferenceStates], rollout: Rollout) -> ReferenceStates:
    """States of consecutive parts as those of the whole rollout."""
    if len(parts) == 1 and parts[0].hidden.shape[1] == rollout.mask.shape[1]:
        return parts[0]
    whole = torch.zeros(*rollout.mask.shape, parts[0].hidden.shape[2], dtype=parts[0].hidden.dtype)
    whole = whole.to(parts[0].hidden.device)
    row = 0
    for part in parts:
        whole[row : row + part.hidden.shape[0], : part.hidden.shape[1]] = part.hidden
        row += part.hidden.shape[0]
    origins = [part.origin for part in parts if part.origin is not None]
    others = zip(*(part.others for part in parts), strict=True)
    return replace(
        parts[0],
        hidden=whole,
        origin=_joined(origins, rollout) if origins else None,
        others=tuple(_joined(list(other), rollout) for other in others),
    )


def _batch(rollout: Rollout, scored: Scored, states: ReferenceStates, greedy: Greedy | None) -> Batch:
    device, dtype = rollout.mask.device, rollout.sampler.dtype
    baseline = None if greedy is None else torch.tensor(greedy.baseline, dtype=dtype, device=device)[rollout.group]
    return Batch(
        rollout=rollout,
        score=torch.tensor([s or 0.0 for s in scored.total], dtype=dtype, device=device),
        scored=torch.tensor([s is not None for s in scored.total], device=device),
        reference=states,
        baseline=baseline,
    )
