"""The Rényi divergence of fused against float64 autograd through log Σ exp(α log p + (1 − α) log q) / (α − 1)."""

from dataclasses import replace

import pytest
import torch
from tests.kl.fused_cases import TOLERANCE, Case, error, log_probs, make
from tests.tolerances import FP32

from kleash.errors import UsageError
from kleash.tensors import Head

ORDERS = [0.5, 1.5, 2.0, 5.0]


def check(case: Case, order: float, **options) -> None:
    """Value and gradient, alone and beside every other output's gradient."""
    tolerance = TOLERANCE[case.hidden.dtype]
    p, q, leaves = log_probs(case)
    wanted = (order * p + (1 - order) * q).logsumexp(-1) / (order - 1)
    at = case.targets[..., None]
    others = (
        p.gather(-1, at)[..., 0] + (p.exp() * (p - q)).sum(-1) + (q.exp() * (q - p)).sum(-1) + (p.exp() * p).sum(-1)
    )
    found = case.run(order=order, forward_kl=True, **options)
    assert found.renyi is not None and found.kl is not None and found.kl_forward is not None
    assert error(found.renyi, wanted) < tolerance
    weight = torch.randn(case.targets.shape, dtype=torch.float64)
    beside = found.logprobs + found.kl + found.kl_forward - found.entropy
    for mine, true in ((found.renyi, wanted), (found.renyi + beside, wanted + others)):
        gradients = torch.autograd.grad((weight.to(mine.dtype) * mine).sum(), case.leaves(), retain_graph=True)
        truth = torch.autograd.grad((weight * true).sum(), leaves, retain_graph=True)
        for gradient, expected in zip(gradients, truth, strict=True):
            assert error(gradient, expected) < tolerance


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 3.0, "scale": 0.8, "temperature": 1.3, "extra": 57}], ids=["plain", "softcap-padded"]
)
def test_value_and_gradient_equal_float64_autograd(order: float, dtype: torch.dtype, options: dict) -> None:
    check(make(dtype=dtype, **options), order, chunk_bytes=1 << 14)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 5000, None])
def test_the_chunk_size_changes_nothing(chunk_bytes: int | None) -> None:
    check(make(M=3, V=131, dtype=torch.float64, softcap=5.0), 2.0, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_bytes", [6000, None])
def test_policy_equal_to_reference_is_exactly_zero(order: float, chunk_bytes: int | None) -> None:
    case = make(V=431, softcap=3.0, scale=1.3, temperature=0.7, extra=3)
    twin = replace(case, ref_hidden=case.hidden.detach().clone(), ref_head=case.head)
    found = twin.run(order=order, chunk_bytes=chunk_bytes).renyi
    assert found is not None and found.eq(0).all()
    assert all(g.eq(0).all() for g in torch.autograd.grad(found.sum(), case.leaves()))


@pytest.mark.parametrize("nats", [-100.0, -10.0, 10.0, 100.0])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunk_bytes", [4, None])
def test_finite_up_to_100_nats(nats: float, order: float, chunk_bytes: int | None) -> None:
    """e^(α·100) is beyond float32: only its logarithm is ever made."""
    eye = Head(torch.eye(3), None, 3)
    flat, sharp = torch.tensor([[0.0, 0.5, 0.25]]), torch.tensor([[nats, 0.0, -1.0]])
    for policy, reference in ((sharp, flat), (flat, sharp)):
        case = Case(policy.clone().requires_grad_(), eye, reference, eye, torch.tensor([0]))
        found = case.run(order=order, chunk_bytes=chunk_bytes).renyi
        p, q, leaves = log_probs(case)
        wanted = (order * p + (1 - order) * q).logsumexp(-1) / (order - 1)
        assert found is not None and error(found, wanted) < FP32
        (gradient,), (truth,) = (
            torch.autograd.grad(found.sum(), case.hidden),
            torch.autograd.grad(wanted.sum(), leaves[0]),
        )
        assert (gradient.double() - truth).abs().max() < FP32  # of order 1: α/(α − 1) times a difference of two shares


def test_it_is_measured_only_where_asked_and_there_is_a_reference() -> None:
    case = make(M=3, V=50)
    assert case.run().renyi is None
    assert case.run(ref_hidden=None, ref_head=None, order=2.0).renyi is None


@pytest.mark.parametrize("order", [0.0, -1.0, 1.0, float("nan"), float("inf")])
def test_an_order_that_is_none_is_refused(order: float) -> None:
    with pytest.raises(UsageError, match="positive and not 1"):
        make(M=2, V=7).run(order=order)
