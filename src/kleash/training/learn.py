"""One step's updates: from a batch to moved weights. Knows no text, no sampler, no log."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from kleash.algorithms import CreditsSteps, LimitsSteps, Totals
from kleash.kl.estimators import k3
from kleash.kl.measure import measure
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.records import Reading
from kleash.rl.value_losses import explained_variance
from kleash.tensors import Batch, Look, Rollout
from kleash.training.passes import ByPlan, Passed, Update, differentiate, joined, observe, spans
from kleash.training.ptx import with_texts
from kleash.training.stepping import step_whole


class Learned(NamedTuple):
    """What the updates saw. `look` is the policy *before* them, detached; kl_old is at the last minibatch.

    `updates`: those taken, fewer than epochs × minibatches where the algorithm's step_kl_limit ended them. `skipped`:
    those that could not be made; loss and grad_norm are of the others, None if there was none. The figures of a critic
    are None without one, and ptx_loss without texts.
    """

    look: Look
    loss: float | None
    grad_norm: float | None
    clip_fraction: float
    truncations: int
    kl_old: Reading | None
    updates: int
    value_loss: float | None
    value_clip_fraction: float | None
    explained_variance: float | None
    ptx_loss: float | None = None
    skipped: tuple["Skipped", ...] = ()


class Skipped(NamedTuple):
    """An update not made, for its loss or its gradient norm was not finite. Of prompt groups first … last−1."""

    first: int
    last: int
    loss: float
    grad_norm: float


def learn(
    policy: Policy,
    optimizer: Optimizer,
    batch: Batch,
    update: Update,
    by_plan: ByPlan,
    *,
    beta: float,
    texts: Sequence[Rollout] = (),
) -> Learned:
    """epochs × minibatches updates of the policy on one batch, each with `texts` of its own where there are any.

    With a single update the policy that sampled is the one that is differentiated: its forward is the measurement as
    well, and every ratio is exactly 1. With more, one pass without gradients first records log π_old; an algorithm
    that credits a step at once is given that pass too (look, credit, loss). An update whose loss or gradient is not
    finite is not made, and is told of.
    """
    algorithm, n = update.algorithm, batch.rollout.n_prompts
    look, batch = _credited(policy, batch, update, by_plan, beta)
    score_std = float(batch.score[batch.scored].std(correction=0)) if batch.scored.any() else 0.0

    taken: list[Passed] = []
    norms: list[float] = []
    skipped: list[Skipped] = []
    tokens, kl_old, done = 0, None, None
    for number, (first, last) in enumerate(spans(n, -(-n // algorithm.minibatches)) * algorithm.epochs):
        minibatch = batch.groups(first, last)
        totals = Totals(int(minibatch.scored.sum()), int(minibatch.mask.sum()), update.length, score_std)
        text = texts[number] if texts else None
        done, kl_old, beyond = by_plan(partial(_gradients, policy, optimizer, minibatch, update, totals, beta, text))
        if beyond:
            break
        norm = float(torch.nn.utils.clip_grad_norm_(policy.trainable(), update.max_grad_norm))
        if not (math.isfinite(norm) and math.isfinite(done.loss)):
            skipped.append(Skipped(first, last, done.loss, norm))
            continue
        step_whole(optimizer)
        norms.append(norm)
        taken.append(done)
        tokens += totals.tokens
    assert done is not None, "there is a prompt"
    value_loss, value_clip_fraction = _values(taken, tokens)
    return Learned(
        look=joined([done.look], batch.rollout) if look is None else look,
        loss=_mean([one.loss for one in taken]),
        grad_norm=max(norms, default=None),
        clip_fraction=sum(one.clipped for one in taken) / max(tokens, 1),
        truncations=sum(one.truncations for one in taken),
        kl_old=kl_old,
        updates=len(taken),
        value_loss=value_loss,
        value_clip_fraction=value_clip_fraction,
        explained_variance=_explained(batch),
        ptx_loss=_mean([one.ptx_loss for one in taken if one.ptx_loss is not None]),
        skipped=tuple(skipped),
    )


def _gradients(
    policy: Policy,
    optimizer: Optimizer,
    minibatch: Batch,
    update: Update,
    totals: Totals,
    beta: float,
    text: Rollout | None,
    plan: Plan,
) -> tuple[Passed, Reading | None, bool]:
    """A minibatch's gradients and nothing else in `.grad`; kl_old, and whether it is beyond the algorithm's limit."""
    optimizer.zero_grad(set_to_none=True)
    done = differentiate(policy, minibatch, update, plan, totals, beta)
    old, algorithm = minibatch.old, update.algorithm
    kl_old = None if old is None else step_size(old, done.look.logprobs, minibatch.rollout)
    beyond = kl_old is not None and isinstance(algorithm, LimitsSteps) and algorithm.is_beyond(kl_old)
    if text is not None and not beyond:
        done = with_texts(policy, text, update, plan, done)
    return done, kl_old, beyond


def _credited(policy: Policy, batch: Batch, update: Update, by_plan: ByPlan, beta: float) -> tuple[Look | None, Batch]:
    """The look before the first update where one is needed, and the batch with what it gives: old and credit."""
    algorithm = update.algorithm
    several = algorithm.epochs * algorithm.minibatches > 1
    if not several and not isinstance(algorithm, CreditsSteps):
        return None, batch
    look = by_plan(partial(observe, policy, batch.rollout, batch.reference, update))
    if isinstance(algorithm, CreditsSteps):
        batch = replace(batch, credit=algorithm.credit(look, batch, update.penalty, beta))
    if batch.reference is not None:  # measured now; the updates need not measure it again
        batch = replace(batch, reference=replace(batch.reference, origin=None))
    return look, replace(batch, old=look.logprobs) if several else batch


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _values(taken: Sequence[Passed], tokens: int) -> tuple[float | None, float | None]:
    """Per token: the value loss, and the share of tokens at which its clip cut the gradient."""
    values = [one.values for one in taken if one.values is not None]
    if not values:
        return None, None
    return sum(v.loss for v in values) / max(tokens, 1), sum(v.clipped for v in values) / max(tokens, 1)


def _explained(batch: Batch) -> float | None:
    credit = batch.credit
    if credit is None or credit.values is None or credit.returns is None:
        return None
    return explained_variance(credit.values, credit.returns, batch.mask)


def step_size(old: Float[Tensor, "B T"], new: Float[Tensor, "B T"], rollout: Rollout) -> Reading:
    """KL(old policy‖policy) per sequence on the old policy's tokens, by k3 (low variance near 0)."""
    return measure(
        k3(old - new),
        rollout.mask,
        rollout.group,
        kind="kl_old",
        estimator="k3",
        unit="nats/sequence",
    )
