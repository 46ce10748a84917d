"""fused where float32 is hardest: policy == reference, saturation up to 100 nats, a KL of a millionth of a nat."""

from dataclasses import replace

import pytest
import torch
from tests.kl.fused_cases import Case, error, expected, make
from tests.tolerances import FP32

from kleash.kl.fused import fused
from kleash.tensors import Head


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("chunk_bytes", [6000, None])
def test_policy_equal_to_reference_is_exactly_zero(dtype: torch.dtype, softcap: float | None, chunk_bytes: int) -> None:
    case = make(V=431, dtype=dtype, softcap=softcap, scale=1.3, temperature=0.7, extra=3)
    # Copies, one of them at an odd address: equality is of values, not of storage.
    shifted = torch.cat([torch.zeros(1, dtype=dtype), case.hidden.detach().flatten()])[1:].view_as(case.hidden)
    same = replace(case, ref_hidden=shifted, ref_head=replace(case.head, weight=case.head.weight.detach().clone()))
    for twin in (same, replace(case, ref_hidden=case.hidden, ref_head=case.head)):
        found = twin.run(forward_kl=True, chunk_bytes=chunk_bytes)
        assert found.kl is not None and found.kl_forward is not None and found.ref_logprobs is not None
        assert found.kl.eq(0).all() and found.kl_forward.eq(0).all()
        assert found.ref_logprobs.equal(found.logprobs) and torch.equal(found.ref_entropy, found.entropy)
        for term in (found.kl, found.kl_forward):
            gradients = torch.autograd.grad(term.sum(), case.leaves(), retain_graph=True)
            assert all(g.eq(0).all() for g in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nats", [-100.0, -30.0, -10.0, 10.0, 30.0, 100.0])
@pytest.mark.parametrize("saturated", ["policy", "reference"])
@pytest.mark.parametrize("chunk_bytes", [4, None])
def test_log_ratios_up_to_100_nats(dtype: torch.dtype, nats: float, saturated: str, chunk_bytes: int | None) -> None:
    """Hidden states are the logits (the head is the identity), so the log-ratio is set exactly in every dtype.

    A saturated policy's true gradient shrinks to e^−100; it must agree relative to itself as far as float64 knows it.
    """
    sharp = torch.tensor([[nats, 0.0, -1.0]], dtype=dtype)
    flat = torch.tensor([[0.0, 0.5, 0.25]], dtype=dtype)
    policy, reference = (sharp, flat) if saturated == "policy" else (flat, sharp)
    eye = Head(torch.eye(3, dtype=dtype), None, 3)
    case = Case(policy.requires_grad_(), eye, reference, eye, torch.tensor([0]))
    found = case.run(forward_kl=True, chunk_bytes=chunk_bytes)
    wanted, leaves = expected(case)
    for name in ("kl", "kl_forward"):
        assert error(getattr(found, name), wanted[name]) < FP32
        (gradient,) = torch.autograd.grad(getattr(found, name).sum(), case.hidden, retain_graph=True)
        (truth,) = torch.autograd.grad(wanted[name].sum(), leaves[0], retain_graph=True)
        assert gradient.isfinite().all()
        if truth.abs().max() > 1e-10:  # below, float64 autograd is itself the noise of p (r − KL)
            assert error(gradient, truth) < FP32
        else:
            assert gradient.double().abs().max() < 1e-10
    assert case.hidden.grad is None
    forward = torch.autograd.grad(found.kl_forward.sum(), case.hidden)[0]
    assert forward.abs().max() > 0.1  # the forward KL's pull, p − q, stays live at any distance


def test_a_saturated_policy_keeps_its_tiny_gradient() -> None:
    """Two tokens 20 nats apart: the textbook float32 form rounds the likely token's gradient to 0 or to noise."""
    eye = Head(torch.eye(2), None, 2)
    hidden = torch.tensor([[20.0, 0.0]], requires_grad=True)
    kl = fused(hidden, eye, torch.tensor([0]), ref_hidden=torch.zeros(1, 2), ref_head=eye).kl
    assert kl is not None
    (gradient,) = torch.autograd.grad(kl.sum(), hidden)
    p1 = 1 / (1 + torch.tensor(20.0, dtype=torch.float64).exp())
    slope = p1 * (1 - p1) * 20  # d KL(Bernoulli(σ(x)) ‖ Bernoulli(½)) / dx = x σ(x) σ(−x)
    assert error(gradient, torch.stack([slope, -slope])[None]) < FP32


def test_a_small_kl_survives_float32() -> None:
    """A KL of 3e-6, as after one training step, is right to a few per cent though log Z is only known to 1e-6."""
    case = make(M=64, H=64, V=5000, K=64, bias=False)
    nearby = case.head.weight.detach() + 3e-4 * torch.randn(5000, 64)
    case = replace(case, ref_hidden=case.hidden.detach(), ref_head=replace(case.head, weight=nearby))
    found, wanted = case.run().kl, expected(case)[0]["kl"].detach()
    assert found is not None and 1e-6 < wanted.mean() < 5e-6
    assert abs(float((found.detach().double() / wanted).mean()) - 1) < 0.05
    assert found.min() > 0
