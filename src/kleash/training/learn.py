"""One step's updates: from a batch to moved weights. Knows no text, no sampler, no log."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.algorithms import Algorithm, Totals
from kleash.errors import RunError
from kleash.kl.estimators import k3
from kleash.kl.measure import measure
from kleash.kl.penalties import Penalty
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.records import Reading
from kleash.tensors import Batch, Look, ReferenceStates, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How weights move. `length` is C, the constant by which token sums are divided (max_new_tokens).

    `path` is the way through the model, one of those it passed at load.
    """

    algorithm: Algorithm
    penalty: Penalty
    length: int
    temperature: float = 1.0
    max_grad_norm: float = math.inf
    groups_per_pass: int | None = None
    path: PathName = "packed"


class Learned(NamedTuple):
    """What the updates saw. `look` is the policy *before* them, detached; kl_old is at the last minibatch."""

    look: Look
    loss: float
    grad_norm: float
    clip_fraction: float
    truncations: int
    kl_old: Reading | None


class _Pass(NamedTuple):
    """One minibatch's forward and backward, before its optimizer step."""

    looks: list[Look]
    loss: float
    clipped: int
    truncations: int


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
    for first, last in _spans(n, -(-n // algorithm.minibatches)) * algorithm.epochs:
        minibatch = batch.groups(first, last)
        done = _differentiate(policy, optimizer, minibatch, update, beta, score_std)
        norms.append(_move(policy, optimizer, update.max_grad_norm, done.loss))
        losses.append(done.loss)
        clipped, truncations = clipped + done.clipped, truncations + done.truncations
        seen_tokens += int(minibatch.mask.sum())
    assert done is not None
    if look is None:
        look, kl_old = _joined(done.looks, batch.rollout), None
    else:
        assert minibatch.old is not None
        kl_old = step_size(minibatch.old, _joined(done.looks, minibatch.rollout).logprobs, minibatch.rollout)
    return Learned(
        look=look,
        loss=sum(losses) / len(losses),
        grad_norm=max(norms),
        clip_fraction=clipped / max(seen_tokens, 1),
        truncations=truncations,
        kl_old=kl_old,
    )


@torch.no_grad()
def observe(policy: Policy, rollout: Rollout, reference: ReferenceStates | None, update: Update) -> Look:
    """A look without gradients, in the same passes and by the same path as the update's own."""
    looks = []
    for first, last in _spans(rollout.n_prompts, update.groups_per_pass or rollout.n_prompts):
        part = rollout.groups(first, last)
        states = None if reference is None else reference.rows(rollout.rows(first, last), part.mask.shape[1])
        looks.append(policy(part, reference=states, temperature=update.temperature, path=update.path))
    return _joined(looks, rollout)


def _differentiate(
    policy: Policy, optimizer: torch.optim.Optimizer, batch: Batch, update: Update, beta: float, score_std: float
) -> _Pass:
    """Gradients of one minibatch, accumulated over its passes; the totals are the minibatch's."""
    mask = batch.mask
    totals = Totals(int(batch.scored.sum()), int(mask.sum()), update.length, score_std)
    optimizer.zero_grad(set_to_none=True)
    looks: list[Look] = []
    loss, clipped, truncations = 0.0, 0, 0
    for first, last in _spans(batch.rollout.n_prompts, update.groups_per_pass or batch.rollout.n_prompts):
        part = batch.groups(first, last)
        look = policy(part.rollout, reference=part.reference, temperature=update.temperature, path=update.path)
        looks.append(_detached(look))
        if not part.mask.any():
            continue
        term = update.algorithm.loss(look, part, totals, update.penalty, beta)
        term.value.backward()
        loss = loss + float(term.value.detach())
        clipped, truncations = clipped + term.clipped, truncations + term.truncations
    return _Pass(looks, loss, clipped, truncations)


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


def _spans(n: int, size: int) -> list[tuple[int, int]]:
    return [(i, min(i + size, n)) for i in range(0, n, size)]


def _detached(look: Look) -> Look:
    return Look(
        look.logprobs.detach(),
        look.entropy.detach(),
        None if look.ref is None else look.ref.detach(),
        None if look.kl is None else look.kl.detach(),
    )


def _joined(looks: list[Look], rollout: Rollout) -> Look:
    """Looks of consecutive parts as one of the whole rollout's shape."""

    def joined(parts: list[Tensor]) -> Tensor:
        whole = torch.zeros(rollout.mask.shape, dtype=parts[0].dtype, device=parts[0].device)
        row = 0
        for part in parts:
            whole[row : row + part.shape[0], : part.shape[1]] = part
            row += part.shape[0]
        return whole

    def given(name: str) -> Iterator[Tensor]:
        return (value for look in looks if (value := getattr(look, name)) is not None)

    refs, kls = list(given("ref")), list(given("kl"))
    return Look(
        joined(list(given("logprobs"))),
        joined(list(given("entropy"))),
        joined(refs) if refs else None,
        joined(kls) if kls else None,
    )
