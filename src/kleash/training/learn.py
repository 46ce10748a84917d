"""One step's updates: from a batch to moved weights. Knows no text, no sampler, no log."""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.algorithms import Totals
from kleash.errors import RunError
from kleash.kl.estimators import k3
from kleash.kl.measure import measure
from kleash.models.policy import Policy
from kleash.records import Reading
from kleash.tensors import Batch, Look, Rollout
from kleash.training.passes import Update, differentiate, observe, spans


class Learned(NamedTuple):
    """What the updates saw. `look` is the policy *before* them, detached; kl_old is at the last minibatch."""

    look: Look
    loss: float
    grad_norm: float
    clip_fraction: float
    truncations: int
    kl_old: Reading | None


def learn(policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, update: Update, *, beta: float) -> Learned:
    """epochs × minibatches updates of the policy on one batch.

    With a single update the policy that sampled is the one that is differentiated: its forward is the measurement as
    well, and every ratio is exactly 1. With more, one pass without gradients first records log π_old.

    Raises:
        RunError: the loss or the gradient is not finite; the weights were not moved by that update.
    """
    algorithm, n = update.algorithm, batch.rollout.n_prompts
    look = None
    if algorithm.epochs * algorithm.minibatches > 1:
        look = observe(policy, batch.rollout, batch.reference, update)
        batch = replace(batch, old=look.logprobs)
    score_std = float(batch.score[batch.scored].std(correction=0)) if batch.scored.any() else 0.0

    losses: list[float] = []
    norms: list[float] = []
    clipped = truncations = seen_tokens = 0
    done, minibatch = None, batch
    for first, last in spans(n, -(-n // algorithm.minibatches)) * algorithm.epochs:
        minibatch = batch.groups(first, last)
        totals = Totals(int(minibatch.scored.sum()), int(minibatch.mask.sum()), update.length, score_std)
        optimizer.zero_grad(set_to_none=True)
        done = differentiate(policy, minibatch, update, totals, beta)
        norms.append(_move(policy, optimizer, update.max_grad_norm, done.loss))
        losses.append(done.loss)
        clipped, truncations = clipped + done.clipped, truncations + done.truncations
        seen_tokens += totals.tokens
    assert done is not None
    if look is None:
        look, kl_old = done.look, None
    else:
        assert minibatch.old is not None
        kl_old = step_size(minibatch.old, done.look.logprobs, minibatch.rollout)
    return Learned(
        look=look,
        loss=sum(losses) / len(losses),
        grad_norm=max(norms),
        clip_fraction=clipped / max(seen_tokens, 1),
        truncations=truncations,
        kl_old=kl_old,
    )


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
