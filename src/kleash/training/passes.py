"""One minibatch's passes through the model: looks without gradients, and gradients gathered over the passes.

A pass is whole prompt groups, so that a group's credit is computed inside it; passes add up to the minibatch exactly.
Nothing here zeroes a gradient or moves a weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.algorithms import Algorithm, AveragesTokens, EntropyBonus, Loss, Totals, ValueFigures
from kleash.kl.divergence_penalties import order_of
from kleash.kl.penalties import Penalty
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.rl.mismatch import Mismatch
from kleash.tensors import Batch, Look, ReferenceStates, Rollout

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """How weights move. `length` is C, the constant by which token sums are divided (max_new_tokens).

    `token_weight`: what the KL at a sampled token is multiplied by in the penalty, by its id; None: 1. `mismatch`: how
    the credit is corrected for a sampler that is not the policy; None: not.
    `entropy`: the bonus of this step; None: without one.
    """

    algorithm: Algorithm
    penalty: Penalty
    length: int
    temperature: float = 1.0
    max_grad_norm: float = math.inf
    token_weight: Float[Tensor, " V"] | None = None
    mismatch: Mismatch | None = None
    entropy: EntropyBonus | None = None


@runtime_checkable
class ByPlan(Protocol):
    """Does a piece of work by the plan in force, and again by a smaller one where memory runs out."""

    def __call__(self, work: Callable[[Plan], Found]) -> Found: ...


class Passed(NamedTuple):
    """What a minibatch's passes saw and counted. `look` is detached, of the minibatch's shape; ptx_loss: of texts."""

    look: Look
    loss: float
    clipped: int
    truncations: int
    values: ValueFigures | None
    ptx_loss: float | None = None


@torch.no_grad()
def observe(policy: Policy, rollout: Rollout, reference: ReferenceStates | None, update: Update, plan: Plan) -> Look:
    """A look without gradients, in the same passes and by the same path as an update's own."""
    looks = []
    for first, last in spans(rollout.n_prompts, plan.groups or rollout.n_prompts):
        part = rollout.groups(first, last)
        states = None if reference is None else reference.rows(rollout.rows(first, last), part.mask.shape[1])
        looks.append(_seen(policy, part, states, update, plan))
    return joined(looks, rollout)


def differentiate(policy: Policy, batch: Batch, update: Update, plan: Plan, totals: Totals, beta: float) -> Passed:
    """Adds one minibatch's gradients to `.grad`, pass by pass; `totals` are the minibatch's, so that passes add up."""
    looks: list[Look] = []
    values: list[ValueFigures] = []
    loss, clipped, truncations = 0.0, 0, 0
    for first, last in spans(batch.rollout.n_prompts, plan.groups or batch.rollout.n_prompts):
        part = batch.groups(first, last)
        look = _seen(policy, part.rollout, part.reference, update, plan)
        looks.append(_detached(look))
        if not part.mask.any():
            continue
        term = _term(look, _corrected(part, look, update.mismatch), totals, update, beta)
        term.value.backward()
        loss = loss + float(term.value.detach())
        clipped, truncations = clipped + term.clipped, truncations + term.truncations
        values += [] if term.values is None else [term.values]
    fit = ValueFigures(sum(v.loss for v in values), sum(v.clipped for v in values)) if values else None
    return Passed(joined(looks, batch.rollout), loss, clipped, truncations, fit)


def _term(look: Look, part: Batch, totals: Totals, update: Update, beta: float) -> Loss:
    """The algorithm's loss of one pass, and the entropy bonus averaged as that one averages."""
    algorithm = update.algorithm
    own = algorithm.loss(look, part, totals, update.penalty, beta)
    if update.entropy is None or update.entropy.coef == 0:
        return own
    length = algorithm.length if isinstance(algorithm, AveragesTokens) else "constant"
    bonus = update.entropy.term(look, part, totals, length, algorithm.prefix_cap)
    return own._replace(value=own.value + bonus.value, truncations=own.truncations + bonus.truncations)


def _seen(policy: Policy, rollout: Rollout, reference: ReferenceStates | None, update: Update, plan: Plan) -> Look:
    look = policy(
        rollout,
        reference=reference,
        temperature=update.temperature,
        path=plan.path,
        rows=plan.rows,
        order=order_of(update.penalty),
    )
    if update.token_weight is None:
        return look
    return replace(look, weight=update.token_weight[rollout.completion_ids].to(look.logprobs.dtype))


def _corrected(batch: Batch, look: Look, mismatch: Mismatch | None) -> Batch:
    """With the weights of its samples; before a step's first update the look is that of the old policy."""
    if mismatch is None:
        return batch
    old = look.logprobs.detach() if batch.old is None else batch.old
    return replace(batch, correction=mismatch.weights(old, batch.rollout.sampler, batch.rollout.mask).value)


def spans(n: int, size: int) -> list[tuple[int, int]]:
    """0 … n cut into consecutive (first, last) of `size`, the last one smaller."""
    return [(i, min(i + size, n)) for i in range(0, n, size)]


def _detached(look: Look) -> Look:
    seen = {field.name: getattr(look, field.name) for field in fields(look)}
    detached: dict[str, Any] = {name: x if x is None else x.detach() for name, x in seen.items()}
    return Look(**detached)


def joined(looks: list[Look], rollout: Rollout) -> Look:
    """Looks of consecutive parts as one of the whole rollout's shape."""

    def stacked(parts: list[Tensor]) -> Tensor:
        whole = torch.zeros(rollout.mask.shape, dtype=parts[0].dtype, device=parts[0].device)
        row = 0
        for part in parts:
            whole[row : row + part.shape[0], : part.shape[1]] = part
            row += part.shape[0]
        return whole

    seen: dict[str, list[Any]] = {field.name: [getattr(look, field.name) for look in looks] for field in fields(Look)}
    whole: dict[str, Any] = {name: None if parts[0] is None else stacked(parts) for name, parts in seen.items()}
    return Look(**whole)
