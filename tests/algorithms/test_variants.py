"""Each variant against a slow loop written from its paper: value and gradient, off-policy, rows of several lengths."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tolerances import EXACT
from torch import Tensor

from kleash.algorithms import CISPO, DAPO, GRPO, GSPO, Totals
from kleash.algorithms.clip import ClipRange
from kleash.kl.penalties import NoPenalty
from kleash.tensors import Batch, Look, Rollout

G, T, C = 4, 5, 7
LENGTHS = [5, 2, 3, 1, 4, 4, 1, 5]


def case(size: float) -> tuple[Tensor, Batch]:
    """Two groups of four with log-probs `size` away from the old ones."""
    random = torch.Generator().manual_seed(0)
    old = -torch.rand(2 * G, T, generator=random, dtype=torch.float64) - 0.5
    moved = old + size * torch.randn(2 * G, T, generator=random, dtype=torch.float64)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    rollout = Rollout(
        prompt_ids=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        completion_ids=torch.zeros(2 * G, T, dtype=torch.long),
        mask=mask,
        group=torch.arange(2).repeat_interleave(G),
        sampler=old,
        truncated=torch.zeros(2 * G, dtype=torch.bool),
    )
    score = torch.randn(2 * G, generator=random, dtype=torch.float64)
    return moved.requires_grad_(), Batch(rollout, score, torch.ones(2 * G, dtype=torch.bool), old=old)


def advantages(score: list[float], *, std: bool) -> list[float]:
    """(R − mean)/σ within each group, or R − mean."""
    found: list[float] = []
    for first in (0, G):
        group = score[first : first + G]
        mean = sum(group) / G
        sigma = math.sqrt(sum((x - mean) ** 2 for x in group) / G) if std else 1.0
        found += [(x - mean) / sigma for x in group]
    return found


def clip(x: Tensor, low: float, high: float) -> Tensor:
    value = x.item()
    return x if low <= value <= high else torch.tensor(low if value < low else high, dtype=x.dtype)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    return a if a.item() <= b.item() else b


def ratio(new: Tensor, old: Tensor, i: int, t: int) -> Tensor:
    return new[i, t].exp() / old[i, t].exp()


def dr_grpo(new: Tensor, old: Tensor, score: list[float]) -> Tensor:
    """Liu et al. 2025: Σ_i Σ_t min(ρA, clip(ρ)A) / (G · a constant), A = R − mean."""
    A = advantages(score, std=False)
    total = torch.zeros((), dtype=new.dtype)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            r = ratio(new, old, i, t)
            total = total + minimum(r * A[i], clip(r, 0.8, 1.2) * A[i])
    return -total / (2 * G * C)


def gspo(new: Tensor, old: Tensor, score: list[float]) -> Tensor:
    """Zheng et al. 2025, eq. 5–7, the group mean taken over all groups."""
    A = advantages(score, std=True)
    total = torch.zeros((), dtype=new.dtype)
    for i, length in enumerate(LENGTHS):
        s = torch.ones((), dtype=new.dtype)
        for t in range(length):
            s = s * ratio(new, old, i, t)
        s = s ** (1 / length)
        total = total + minimum(s * A[i], clip(s, 1 - 3e-4, 1 + 4e-4) * A[i])
    return -total / (2 * G)


def cispo(new: Tensor, old: Tensor, score: list[float]) -> Tensor:
    """MiniMax 2025, eq. 4–5, the mean over the tokens of the batch."""
    A = advantages(score, std=True)
    total = torch.zeros((), dtype=new.dtype)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            total = total + clip(ratio(new, old, i, t), 0.0, 5.0).detach() * A[i] * new[i, t]
    return -total / sum(LENGTHS)


def dapo(new: Tensor, old: Tensor, score: list[float]) -> Tensor:
    """Yu et al. 2025, eq. 8–9, the mean over the tokens of the batch."""
    A = advantages(score, std=True)
    total = torch.zeros((), dtype=new.dtype)
    for i, length in enumerate(LENGTHS):
        for t in range(length):
            r = ratio(new, old, i, t)
            total = total + minimum(r * A[i], clip(r, 0.8, 1.28) * A[i])
    return -total / sum(LENGTHS)


PAPERS: dict[str, tuple[Any, Callable[..., Tensor]]] = {
    "Dr. GRPO is GRPO with nothing else": (GRPO(group_size=G), dr_grpo),
    "GSPO": (GSPO(group_size=G), gspo),
    "CISPO": (CISPO(group_size=G), cispo),
    "DAPO": (DAPO(group_size=G), dapo),
}


@pytest.mark.parametrize("size", [0.0, 1e-4, 0.3, 1.5])
@pytest.mark.parametrize("name", PAPERS)
def test_loss_equals_the_papers_slow_loop(name, size):
    algorithm, slow = PAPERS[name]
    new, batch = case(size)
    assert batch.old is not None
    totals = Totals(2 * G, sum(LENGTHS), C, score_std=1.0)
    found = algorithm.loss(Look(new, torch.zeros_like(new)), batch, totals, NoPenalty(), 0.0)
    truth = slow(new, batch.old, batch.score.tolist())
    torch.testing.assert_close(found.value, truth, rtol=EXACT, atol=EXACT)
    gradients = [torch.autograd.grad(value, new)[0] for value in (found.value, truth)]
    torch.testing.assert_close(*gradients, rtol=EXACT, atol=EXACT)
    assert gradients[0].abs().max() > 0
    if size == 1.5:
        assert found.clipped > 0


@pytest.mark.parametrize("clip_", [0.2, ClipRange(low=0.2, high=0.2)])
def test_a_number_and_two_equal_sides_are_the_same_clip(clip_):
    new, batch = case(0.5)
    totals = Totals(2 * G, sum(LENGTHS), C, score_std=1.0)
    losses = [
        GRPO(group_size=G, clip=c).loss(Look(new, torch.zeros_like(new)), batch, totals, NoPenalty(), 0.0)
        for c in (0.2, clip_)
    ]
    assert losses[0].value == losses[1].value
    assert losses[0].clipped == losses[1].clipped > 0
