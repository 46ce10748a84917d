"""fused against float64 autograd through a plain log_softmax; nothing of kleash on the expected side."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kl.fused_cases import CONSTANT, LIVE, TOLERANCE, check, error, expected, make
from tests.tolerances import EXACT, FP32
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.fused import fused
from kleash.tensors import Head


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"scale": 1.7, "temperature": 0.6},
        {"softcap": 3.0, "scale": 0.8, "temperature": 1.3, "extra": 57},
    ],
    ids=["bias", "plain", "scale-temperature", "softcap-padded"],
)
def test_values_and_gradients_equal_float64_autograd(dtype: torch.dtype, options: dict) -> None:
    case = make(dtype=dtype, **options)
    for live in [LIVE, *((name,) for name in LIVE)]:
        check(case, live, chunk_bytes=1 << 14)


@pytest.mark.parametrize("chunk_bytes", [1, 100, 1000, 131 * 8, 5000, None])
def test_the_chunk_size_changes_nothing(chunk_bytes: int | None) -> None:
    check(make(M=3, V=131, dtype=torch.float64, softcap=5.0), chunk_bytes=chunk_bytes)
    check(make(M=3, V=131), chunk_bytes=chunk_bytes)


@given(
    sizes=st.tuples(*[st.integers(1, 24)] * 4),
    chunk=st.integers(1, 2000),
    extra=st.integers(0, 3),
    softcap=st.sampled_from([None, 2.0]),
    bias=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_any_shape(sizes: tuple[int, ...], chunk: int, extra: int, softcap: float | None, bias: bool) -> None:
    M, H, V, K = sizes
    # A vocabulary of one has entropy and KL 0, with nothing to be relative to.
    case = make(M, H, V + 1, K, extra=extra, softcap=softcap, bias=bias, dtype=torch.float64)
    check(case, chunk_bytes=chunk)


def test_gradcheck() -> None:
    case = make(3, 4, 11, 5, extra=2, softcap=4.0, scale=1.2, temperature=0.8, dtype=torch.float64)

    def live(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        moved = replace(case, hidden=hidden, head=replace(case.head, weight=weight, bias=bias))
        found = moved.run(forward_kl=True, chunk_bytes=100)
        return tuple(getattr(found, name) for name in LIVE)

    assert torch.autograd.gradcheck(live, tuple(case.leaves()))


def test_without_a_reference_only_the_policy_is_measured() -> None:
    case = make()
    found = case.run(ref_hidden=None, ref_head=None, forward_kl=True, chunk_bytes=1 << 14)
    assert (found.ref_logprobs, found.kl, found.kl_forward, found.ref_entropy) == (None, None, None, None)
    wanted, leaves = expected(case)
    assert error(found.logprobs, wanted["logprobs"]) < FP32
    assert error(found.entropy, wanted["entropy"]) < FP32
    gradients = torch.autograd.grad((found.logprobs - found.entropy).sum(), case.leaves())
    truth = torch.autograd.grad((wanted["logprobs"] - wanted["entropy"]).sum(), leaves)
    assert all(error(g, t) < FP32 for g, t in zip(gradients, truth, strict=True))
    assert case.run().kl_forward is None


def test_low_precision_gradients_are_sums_in_float32() -> None:
    """4,000 equal contributions: a bfloat16 accumulator stops growing at 256 of them."""
    case = make(M=1, H=8, V=32, K=8, dtype=torch.bfloat16)
    M = 4000
    many = replace(
        case,
        hidden=case.hidden.detach().expand(M, -1),
        ref_hidden=case.ref_hidden.expand(M, -1),
        targets=case.targets.expand(M),
    )
    found = many.run(chunk_bytes=4 * 32 * 8).kl
    assert found is not None
    (gradient,) = torch.autograd.grad(found.sum(), case.head.weight)
    wanted, leaves = expected(case)
    (truth,) = torch.autograd.grad(wanted["kl"].sum(), leaves[1])
    assert error(gradient, truth * M) < FP32


def test_tied_weights_gradients_add() -> None:
    V, H = 101, 16
    weight = torch.randn(V, H, dtype=torch.float64, requires_grad=True)
    ids, targets = torch.randint(V, (2, 3, 7))
    ref_hidden, ref_weight = torch.randn(3, 7, H, dtype=torch.float64), torch.randn(V, H, dtype=torch.float64)
    found = fused(
        weight[ids].tanh(), Head(weight, None, V), targets, ref_hidden=ref_hidden, ref_head=Head(ref_weight, None, V)
    )
    assert found.kl is not None and found.kl.shape == (3, 7)
    (gradient,) = torch.autograd.grad((found.kl - found.logprobs).sum(), weight)
    p, q = (weight[ids].tanh() @ weight.T).log_softmax(-1), (ref_hidden @ ref_weight.T).log_softmax(-1)
    loss = (p.exp() * (p - q)).sum() - p.gather(-1, targets[..., None]).sum()
    assert error(gradient, torch.autograd.grad(loss, weight)[0]) < EXACT


def test_only_what_is_needed_gets_a_gradient() -> None:
    case = make()
    frozen = replace(case, head=replace(case.head, weight=case.head.weight.detach(), bias=case.head.bias.detach()))
    frozen.run().kl.sum().backward()
    whole = torch.autograd.grad(case.run().kl.sum(), case.hidden)[0]
    assert case.hidden.grad is not None and case.hidden.grad.equal(whole)
    assert case.head.weight.grad is None and case.head.bias.grad is None


def test_the_reference_is_a_constant_even_where_it_shares_the_head() -> None:
    """An adapter switched off: the same live weight on both sides; the gradient comes through the policy's only."""
    case = make(K=37)
    shared = replace(case, ref_head=case.head, ref_hidden=case.ref_hidden.clone().requires_grad_())
    shared.run().kl.sum().backward()
    wanted, leaves = expected(shared)
    wanted["kl"].sum().backward()
    assert shared.ref_hidden.grad is None
    assert error(case.head.weight.grad, leaves[1].grad) < FP32


def test_padding_rows_are_never_touched() -> None:
    """Rows past the vocabulary are NaN here: one look at them and nothing would be finite."""
    case = make(V=100)
    weight = torch.cat([case.head.weight.detach(), torch.full((7, 37), torch.nan)]).requires_grad_()
    bias = torch.cat([case.head.bias.detach(), torch.full((7,), torch.nan)]).requires_grad_()
    padded = replace(case, head=Head(weight, bias, 100))
    check_gradients = torch.autograd.grad(padded.run().kl.sum(), [padded.hidden, weight, bias])
    plain = torch.autograd.grad(case.run().kl.sum(), case.leaves())
    assert check_gradients[0].equal(plain[0])
    assert check_gradients[1][:100].equal(plain[1]) and check_gradients[1][100:].eq(0).all()
    assert check_gradients[2][:100].equal(plain[2]) and check_gradients[2][100:].eq(0).all()


def test_autocast_changes_nothing_on_a_cpu() -> None:
    case = make()
    plain = case.run(forward_kl=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = case.run(forward_kl=True)
        gradients = torch.autograd.grad(cast.kl.sum(), case.leaves())
    assert all(getattr(cast, name).equal(getattr(plain, name)) for name in LIVE + CONSTANT)
    for g, t in zip(gradients, torch.autograd.grad(plain.kl.sum(), case.leaves()), strict=True):
        assert g.equal(t)


def test_mixed_precision_hidden_and_head() -> None:
    """bfloat16 states over a float32 master head: each gradient comes back in its own dtype."""
    case = make()
    mixed = replace(case, hidden=case.hidden.detach().bfloat16().requires_grad_())
    wanted, leaves = expected(mixed)
    found = mixed.run()
    assert error(found.kl, wanted["kl"]) < FP32
    gradients = torch.autograd.grad(found.kl.sum(), mixed.leaves())
    truth = torch.autograd.grad(wanted["kl"].sum(), leaves)
    for g, t, leaf in zip(gradients, truth, mixed.leaves(), strict=True):
        assert g.dtype == leaf.dtype and error(g, t) < TOLERANCE[leaf.dtype]


@pytest.mark.parametrize("shape", [(0,), (), (2, 0), (2, 3)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    case = make(M=1, V=53)
    hidden = torch.randn(*shape, 37, requires_grad=True)
    shaped = replace(
        case,
        hidden=hidden,
        ref_hidden=torch.randn(*shape, 29),
        targets=torch.randint(53, shape, dtype=torch.int32),
    )
    found = shaped.run(forward_kl=True)
    assert all(getattr(found, name).shape == shape for name in LIVE + CONSTANT)
    gradients = torch.autograd.grad(found.kl.sum() + found.logprobs.sum(), shaped.leaves())
    assert all(g.shape == x.shape for g, x in zip(gradients, shaped.leaves(), strict=True))
    if 0 in shape:
        assert all(g.eq(0).all() for g in gradients)
    else:
        check(replace(shaped, targets=shaped.targets.long()))


def test_what_does_not_fit_is_refused() -> None:
    case = make(V=50, extra=4)
    narrow = replace(case.ref_head, vocab=49)
    with pytest.raises(UsageError, match="vocabulary has 50 tokens and the reference's 49"):
        case.run(ref_head=narrow)
    with pytest.raises(UsageError, match="come together"):
        case.run(ref_head=None)
    with pytest.raises(UsageError, match="token ids from 0 to 49"):
        replace(case, targets=case.targets.clone().fill_(50)).run()
    with pytest.raises(UsageError, match="token ids from 0 to 49"):
        replace(case, targets=case.targets.clone().fill_(-100)).run()
    with pytest.raises(UsageError, match="reference's head"):
        case.run(ref_head=replace(case.head))
    with pytest.raises(UsageError, match="policy's head"):
        replace(case, head=replace(case.head, vocab=55)).run()
    with pytest.raises(UsageError, match="must be positive"):
        case.run(temperature=0.0)
    with pytest.raises(UsageError, match="must be positive"):
        case.run(chunk_bytes=0)
