"""χ² and Rényi per position against sums written out over a vocabulary, and χ² past its bound."""

import math

import pytest
import torch
from tests.tolerances import EXACT, LOOP

from kleash.errors import UsageError
from kleash.kl.divergence_penalties import CHI2_BOUND, Chi2, Renyi, beyond_chi2_bound, order_of
from kleash.kl.fused import fused
from kleash.kl.moments import Also
from kleash.tensors import Head, Look


def look_at(logits: torch.Tensor, ref_logits: torch.Tensor, order: float) -> Look:
    """What a policy sees whose hidden states are its logits: the head is the identity."""
    eye = Head(torch.eye(logits.shape[-1], dtype=logits.dtype), None, logits.shape[-1])
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    seen = fused(logits, eye, targets, ref_hidden=ref_logits, ref_head=eye, also=Also(order=order))
    return Look(seen.logprobs, seen.entropy, seen.ref_logprobs, seen.kl, renyi=seen.renyi)


@pytest.mark.parametrize("penalty", [Chi2(), Renyi(alpha=0.3), Renyi(), Renyi(alpha=4.0)], ids=repr)
def test_measures_equal_the_written_out_sums(penalty):
    logits, ref_logits = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = penalty.measure(look_at(logits, ref_logits, order_of(penalty)))
    p, q = logits.softmax(-1), ref_logits.softmax(-1)
    for i, t in torch.cartesian_prod(torch.arange(3), torch.arange(5)).tolist():
        rows = list(zip(p[i, t].tolist(), q[i, t].tolist(), strict=True))
        if isinstance(penalty, Chi2):
            truth = math.fsum((a - b) ** 2 / b for a, b in rows)
        else:
            a = penalty.alpha
            truth = math.log(math.fsum(x**a * y ** (1 - a) for x, y in rows)) / (a - 1)
        assert math.isclose(found[i, t].item(), truth, rel_tol=LOOP)


def test_chi2_goes_on_as_its_tangent():
    """Value and slope in D₂ are continuous at the bound, constant slope beyond, alive and finite at 200 nats."""
    order_two = torch.tensor([[CHI2_BOUND - 1e-9, CHI2_BOUND + 1e-9, CHI2_BOUND + 3, 200.0]], dtype=torch.float64)
    order_two.requires_grad_()
    look = Look(order_two, order_two, renyi=order_two)
    value = Chi2().measure(look)
    (slope,) = torch.autograd.grad(value.sum(), order_two)
    steep = math.exp(CHI2_BOUND)
    assert beyond_chi2_bound(look).tolist() == [[False, True, True, True]]
    assert value[0, 0].item() == pytest.approx(steep - 1, rel=LOOP) == pytest.approx(value[0, 1].item(), rel=LOOP)
    assert value[0, 2].item() == pytest.approx(steep - 1 + 3 * steep, rel=EXACT)
    torch.testing.assert_close(slope, torch.full_like(slope, steep), rtol=LOOP, atol=0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.0, 1.005, math.inf, math.nan])
def test_an_order_that_is_the_kl_or_none_is_refused(alpha):
    with pytest.raises(UsageError, match='penalty = "exact"'):
        Renyi(alpha=alpha)
