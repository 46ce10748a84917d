"""The first half of a step: sample, score, and the reference's states. Nothing here moves a weight."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kleash.models.counting import TokenCounter
from kleash.rewards.score import Scored, score
from kleash.tensors import Batch, ReferenceStates, Rollout
from kleash.training.data import indices
from kleash.training.gauges import Collected
from kleash.training.job import Job, Progressing
from kleash.training.rolling import Asked, roll
from kleash.training.shaped import Drawn, shape


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


def collect(job: Job, state: Progressing, clock: Clock) -> tuple[Collected, Batch]:
    """Sample, score, shape, and the reference's states."""
    step, train, loaded = state.step, job.config.train, job.loaded
    G = job.update.algorithm.group_size
    index = indices(step, train.prompts_per_step, len(job.prompts), train.seed)
    prompts, columns = job.prompts.take(index, G)
    with clock.phase("sample"):
        rollout, completions, texts, columns = roll(job, loaded.policy, Asked(prompts, columns, index, G), step)
    with clock.phase("score"):
        scored = score(job.rewarders, prompts, texts, columns)
    with clock.phase("shape"):
        shaped = shape(job, state.shaping, Drawn(index, rollout, texts), scored)
    with clock.phase("reference"):
        states = reference_states(job, rollout)
    collected = Collected(
        rollout=rollout,
        prompts=list(prompts),
        completions=completions,
        texts=texts,
        scored=scored,
        shaped=shaped,
        mismatch=job.sampling.mismatch,
    )
    return collected, _batch(rollout, shaped.scored, states)


def reference_states(job: Job, rollout: Rollout) -> ReferenceStates:
    """In the passes of the update, so that both sides run in the same shapes and step 0 is exactly 0."""
    n, size = rollout.n_prompts, job.update.groups_per_pass or rollout.n_prompts
    parts = [job.reference.states(rollout.groups(i, min(i + size, n)), job.update.path) for i in range(0, n, size)]
    if len(parts) == 1 and parts[0].hidden.shape[1] == rollout.mask.shape[1]:
        return parts[0]
    whole = torch.zeros(*rollout.mask.shape, parts[0].hidden.shape[2], dtype=parts[0].hidden.dtype)
    whole = whole.to(parts[0].hidden.device)
    row = 0
    for part in parts:
        whole[row : row + part.hidden.shape[0], : part.hidden.shape[1]] = part.hidden
        row += part.hidden.shape[0]
    return ReferenceStates(whole, parts[0].head)


def _batch(rollout: Rollout, scored: Scored, states: ReferenceStates) -> Batch:
    device = rollout.mask.device
    return Batch(
        rollout=rollout,
        score=torch.tensor([s or 0.0 for s in scored.total], dtype=rollout.sampler.dtype, device=device),
        scored=torch.tensor([s is not None for s in scored.total], device=device),
        reference=states,
    )
