"""Held-out prompts: sampled with the same noise each time, scored and measured, without any effect on training.

The noise of a sample is a function of (seed, prompt, sample, position), so that two evaluations differ by the policy
alone, and so does the noise of a reward that uses Python's, numpy's or torch's global generator.
"""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from kleash.errors import UsageError
from kleash.kl.measure import measure
from kleash.masked import clustered_ratio
from kleash.models.counting import TokenCounter
from kleash.models.plan import Plan
from kleash.records import KLKind, Reading, Unit
from kleash.rewards.arguments import chosen
from kleash.rewards.score import Scored, score
from kleash.runlog.schema import Evaluation
from kleash.tensors import Look, Rollout
from kleash.training.careful import Careful
from kleash.training.checkpoint import seed_random
from kleash.training.collect import reference_states
from kleash.training.data import Prompts, digest
from kleash.training.job import Job
from kleash.training.passes import observe, spans
from kleash.training.rolling import Asked, roll

#: The step in the key of the noise: one that no training step has.
KEY = -1


def due(job: Job, step: int) -> bool:
    """Whether the policy is evaluated after `step` updates: before the first, at the cadence, and after the last."""
    train = job.config.train
    every = train.evaluate_every or train.checkpoint_every
    return job.held_out is not None and (step % every == 0 or step == train.steps)


def how(job: Job) -> str:
    """How held-out completions are drawn, for people."""
    samples = job.config.train.evaluate_samples
    if samples == "greedy":
        return "the likeliest token each time (greedy)"
    number = "1 sample" if samples == 1 else f"{samples} samples"
    return f"{number} a prompt, temperature {job.sampling.temperature:g}"


def evaluate(job: Job, step: int, counter: TokenCounter, by_plan: Careful) -> Evaluation:
    """The policy after `step` updates on all held-out prompts.

    Raises:
        RunError: a reward failed, or the policy's logits are not finite.
    """
    assert job.held_out is not None, "due() says when"
    began, before = time.perf_counter(), counter.take()
    greedy = job.config.train.evaluate_samples == "greedy"
    count = 1 if greedy else job.config.train.evaluate_samples
    assert isinstance(count, int)
    with _aside(job.config.train.seed):
        seen = _drawn(_asking(job, greedy), job.held_out, count, by_plan)
        prompts, _ = job.held_out.take(list(range(len(job.held_out))), count)
        scored = score(job.rewarders, prompts, seen.texts, seen.columns, trial=True)
    forward = sum(counter.take().values())
    counter.counts.update(before)  # of the step in progress
    mean, error = _score(scored, seen.group)
    target = job.config.kl.target_at(step)
    return Evaluation(
        step=step,
        how=how(job),
        n_prompts=len(job.held_out),
        n_samples=len(seen.texts),
        prompts=digest(job.held_out)["content"],
        score=mean,
        score_error=error,
        scores={name: _mean(values) for name, values in scored.by_name.items()},
        unscored=sum(total is None for total in scored.total),
        target=None if target is None else str(target),
        kl_ref=seen.reading("kl_ref", "nats/sequence"),
        kl_ref_token=seen.reading("kl_ref", "nats/token"),
        kl_origin=seen.reading("kl_origin", "nats/sequence"),
        kl_origin_token=seen.reading("kl_origin", "nats/token"),
        greedy=greedy,
        length=float(seen.mask.sum(1).double().mean()),
        truncated=float(seen.truncated.double().mean()),
        seconds=round(time.perf_counter() - began, 4),
        tokens_forward=forward,
    )


def check_held_out(job: Job) -> None:
    """Held-out prompts fit the model, and the rewards find their columns.

    Raises:
        UsageError: with what is missing.
    """
    if job.held_out is None:
        return
    try:
        job.encode(job.held_out.prompts)
        own = job.rollout is not None  # whose episodes may bring columns of their own
        for rewarder in [] if own else [one for r in job.rewarders for one in r.members or (r,)]:
            chosen(rewarder.fn, dict.fromkeys([*job.held_out.columns, "prompts", "completions", "messages"]))
    except UsageError as error:
        raise UsageError(f"data.held_out: {error}") from None


@dataclass(frozen=True, slots=True)
class _Drawn:
    """All held-out samples: texts, and exact KLs per counted token by their kind."""

    texts: list[str]
    columns: dict[str, list[Any]]
    kl: dict[KLKind, Float[Tensor, "B T"]]
    mask: Bool[Tensor, "B T"]
    group: Int[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    mismatch: str | None

    def reading(self, kind: KLKind, unit: Unit) -> Reading | None:
        if kind not in self.kl:
            return None
        return measure(
            self.kl[kind], self.mask, self.group, kind=kind, estimator="exact", unit=unit, invalid=self.mismatch
        )


def _asking(job: Job, greedy: bool) -> Job:
    """The same job with the held-out way of sampling."""
    return replace(job, sampling=job.sampling.greedy) if greedy else job


def _drawn(job: Job, held_out: Prompts, count: int, by_plan: Careful) -> _Drawn:
    """As many rows at a time as a training step has, in passes of about as many rows as training's."""
    loaded, T = job.loaded, job.sampling.max_new_tokens
    texts: list[str] = []
    together: dict[str, list[Any]] = {}
    parts: list[tuple[Tensor, ...]] = []
    G = job.update.algorithm.group_size
    rows = job.config.train.prompts_per_step * G
    for first, last in spans(len(held_out), max(1, rows // count)):
        numbers = list(range(first, last))
        asked = Asked(*held_out.take(numbers, count), numbers, count)
        rolled = by_plan.sampling(
            lambda plan, a=asked: roll(job, loaded.policy, a, KEY, plan.for_groups_of(count, G).sampled)
        )
        by_plan.keep_to(rolled.together)
        rollout = rolled.rollout
        look = by_plan(lambda plan, r=rollout: _seen(job, r, plan.for_groups_of(count, G)))
        assert look.kl is not None
        room = (0, T - rollout.mask.shape[1])
        kls = (look.kl,) if look.kl_origin is None else (look.kl, look.kl_origin)
        padded = [pad(x, room) for x in (rollout.mask, *kls)]
        parts.append((rollout.group + first, rollout.truncated, *padded))
        texts += rolled.texts
        for name, column in rolled.columns.items():
            together.setdefault(name, []).extend(column)
    group, truncated, mask, *kls = (torch.cat(column) for column in zip(*parts, strict=True))
    kinds: tuple[KLKind, ...] = ("kl_ref", "kl_origin")
    kl: dict[KLKind, Tensor] = dict(zip(kinds, kls, strict=False))
    return _Drawn(texts, together, kl, mask, group, truncated, job.sampling.mismatch)


def _seen(job: Job, rollout: Rollout, plan: Plan) -> Look:
    states = reference_states(job, rollout, plan)
    return observe(job.loaded.policy, rollout, states, job.update, plan)


def _score(scored: Scored, group: Int[Tensor, " B"]) -> tuple[float | None, float | None]:
    """Mean total score and its standard error, clustered by prompt."""
    rows = [(total, row) for row, total in enumerate(scored.total) if total is not None]
    if not rows:
        return None, None
    totals = torch.tensor([total for total, _ in rows], dtype=torch.float64)
    return clustered_ratio(totals, torch.ones_like(totals), group.cpu()[[row for _, row in rows]])


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@contextmanager
def _aside(seed: int) -> Iterator[None]:
    """The global generators at `seed` meanwhile, and after it where they were."""
    ours, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    seed_random(seed)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
