"""The dataclasses of preference losses: what they read of a look, and what they refuse."""

import pytest
import torch

from kleash.algorithms.preference import LOSSES, PreferenceLoss
from kleash.errors import UsageError
from kleash.tensors import Look

N, T = 3, 5
LENGTHS = torch.tensor([5, 3, 2, 4, 1, 1])
MASK = torch.arange(T) < LENGTHS[:, None]


def look_at(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logprobs, ref = -4 * torch.rand(2, 2 * N, T, generator=generator, dtype=torch.float64)
    return Look(logprobs=logprobs.requires_grad_(), entropy=torch.zeros_like(ref), ref=ref)


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_is_one_and_says_where_it_ends(kind):
    loss = LOSSES[kind]()
    assert isinstance(loss, PreferenceLoss)
    assert loss.kind == kind
    assert loss.label.startswith("reference in the loss" if loss.needs_reference else "no reference in the loss")


@pytest.mark.parametrize("kind", LOSSES)
def test_every_loss_reads_a_look(kind):
    """One loss a pair; the chosen text's tokens are pushed up, the other's down; what is masked is not touched."""
    loss, look = LOSSES[kind](), look_at()
    found = loss.loss(look, MASK, loss.beta)
    assert found.loss.shape == found.rewards.chosen.shape == found.rewards.rejected.shape == (N,)
    (gradient,) = torch.autograd.grad(found.loss.sum(), look.logprobs)
    assert (gradient[0::2][MASK[0::2]] < 0).all()
    assert (gradient[1::2][MASK[1::2]] > 0).all()
    assert (gradient[~MASK] == 0).all()


@pytest.mark.parametrize("kind", LOSSES)
def test_a_pair_is_a_pair_in_any_batch(kind):
    """The loss of a pair does not depend on which others it is asked with."""
    loss, look = LOSSES[kind](), look_at()
    together = loss.loss(look, MASK, loss.beta).loss
    for i in range(N):
        rows = slice(2 * i, 2 * i + 2)
        ref = None if look.ref is None else look.ref[rows]
        alone = Look(logprobs=look.logprobs[rows], entropy=look.entropy[rows], ref=ref)
        assert torch.equal(loss.loss(alone, MASK[rows], loss.beta).loss, together[i : i + 1])


@pytest.mark.parametrize("kind", LOSSES)
def test_refused_settings(kind):
    with pytest.raises(UsageError, match=r"loss\.beta = 0\.0 must be above 0"):
        LOSSES[kind](beta=0.0)
