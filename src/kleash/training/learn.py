"""One step's updates: from a batch to moved weights. Knows no text, no sampler, no log."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.algorithms import CreditsSteps, LimitsSteps, Totals
from kleash.errors import RunError
from kleash.kl.estimators import k3
from kleash.kl.measure import measure
from kleash.models.policy import Policy
from kleash.records import Reading
from kleash.rl.value_losses import explained_variance
from kleash.tensors import Batch, Look, Rollout
from kleash.training.passes import Passed, Update, differentiate, observe, spans


class Learned(NamedTuple):
    """What the updates saw. `look` is the policy *before* them, detached; kl_old is at the last minibatch.

    `updates`: those taken, fewer than epochs × minibatches where the algorithm's step_kl_limit ended them. The last
    three are None without a critic.
    """

    look: Look
    loss: float
    grad_norm: float
    clip_fraction: float
    truncations: int
    kl_old: Reading | None
    updates: int
    value_loss: float | None
    value_clip_fraction: float | None
    explained_variance: float | None


def learn(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, update: Update, *, beta: float) -> Learned:
    """epochs × minibatches updates of the policy on one batch.

    With a single update the policy that sampled is the one that is differentiated: its forward is the measurement as
    well, and every ratio is exactly 1. With more, one pass without gradients first records log π_old; an algorithm
    that credits a step at once is given that pass too (look, credit, loss).

    Raises:
        RunError: the loss or the gradient is not finite; the weights were not moved by that update.
    """
    algorithm, n = update.algorithm, batch.rollout.n_prompts
    look, batch = _credited(policy, batch, update, beta)
    score_std = float(batch.score[batch.scored].std(correction=0)) if batch.scored.any() else 0.0

    taken: list[Passed] = []
    norms: list[float] = []
    tokens, kl_old = 0, None
    for first, last in spans(n, -(-n // algorithm.minibatches)) * algorithm.epochs:
        minibatch = batch.groups(first, last)
        totals = Totals(int(minibatch.scored.sum()), int(minibatch.mask.sum()), update.length, score_std)
        optimizer.zero_grad(set_to_none=True)
        done = differentiate(policy, minibatch, update, totals, beta)
        if minibatch.old is not None:
            kl_old = step_size(minibatch.old, done.look.logprobs, minibatch.rollout)
        if kl_old is not None and isinstance(algorithm, LimitsSteps) and algorithm.is_beyond(kl_old):
            break
        norms.append(_move(policy, optimizer, update.max_grad_norm, done.loss))
        taken.append(done._replace(look=done.look if look is None else look))
        tokens += totals.tokens
    values = [done.values for done in taken if done.values is not None]
    return Learned(
        look=taken[0].look,
        loss=sum(done.loss for done in taken) / len(taken),
        grad_norm=max(norms),
        clip_fraction=sum(done.clipped for done in taken) / max(tokens, 1),
        truncations=sum(done.truncations for done in taken),
        kl_old=kl_old,
        updates=len(taken),
        value_loss=sum(v.loss for v in values) / max(tokens, 1) if values else None,
        value_clip_fraction=sum(v.clipped for v in values) / max(tokens, 1) if values else None,
        explained_variance=_explained(batch),
    )


def _credited(policy: Policy, batch: Batch, update: Update, beta: float) -> tuple[Look | None, Batch]:
    """The look before the first update where one is needed, and the batch with what it gives: old and credit."""
    algorithm = update.algorithm
    several = algorithm.epochs * algorithm.minibatches > 1
    if not several and not isinstance(algorithm, CreditsSteps):
        return None, batch
    look = observe(policy, batch.rollout, batch.reference, update)
    if isinstance(algorithm, CreditsSteps):
        batch = replace(batch, credit=algorithm.credit(look, batch, update.penalty, beta))
    return look, replace(batch, old=look.logprobs) if several else batch


def _explained(batch: Batch) -> float | None:
    credit = batch.credit
    if credit is None or credit.values is None or credit.returns is None:
        return None
    return explained_variance(credit.values, credit.returns, batch.mask)


def _move(policy: Policy, optimizer: torch.optim.Optimizer, max_norm: float, loss: float) -> float:
    norm = float(torch.nn.utils.clip_grad_norm_(policy.trainable(), max_norm))
    if not (math.isfinite(norm) and math.isfinite(loss)):
        raise RunError(
            f"the update is not finite (loss {loss:g}, gradient norm {norm:g}); the weights were not moved by it. "
            "Lower train.learning_rate, or look at the scores of the last samples"
        )
    optimizer.step()
    return norm


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
