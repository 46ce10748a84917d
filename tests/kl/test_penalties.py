"""The two terms of each penalty against slow loops and written-out formulas, and what is refused with which reason."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.errors import UsageError
from kleash.kl.penalties import (
    PENALTIES,
    Chi2,
    Exact,
    FutureSampled,
    InLoss,
    InReward,
    NoPenalty,
    Penalty,
    Ratios,
    Renyi,
    kl_to_come,
)
from kleash.tensors import Look

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
B, T = 3, 4
ALL = [
    Exact(),
    InReward(),
    InLoss(),
    InLoss(estimator="k2"),
    InLoss(estimator="k3"),
    InLoss(estimator="k3", ratio="detached"),
    InLoss(estimator="k3", ratio="none"),
    InLoss(estimator="k2", ratio="none"),
    FutureSampled(),
    Chi2(),
    Renyi(),
    NoPenalty(),
]


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def close(found, truth) -> None:
    torch.testing.assert_close(found, truth, rtol=EXACT, atol=EXACT)


@st.composite
def tables(draw):
    """(x, mask), each [B, T] as lists; the mask has holes, for a forced token may stand between two others."""
    b, t = draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def table(values):
        return draw(st.lists(st.lists(values, min_size=t, max_size=t), min_size=b, max_size=b))

    return table(st.floats(-3, 3)), table(st.booleans())


@given(tables())
@settings(deadline=None)
def test_kl_to_come_equals_slow_loop(case):
    x, mask = case
    steps = range(len(x[0]))
    slow = [
        [math.fsum(row[n] for n in steps if n > t and counts[n]) for t in steps]
        for row, counts in zip(x, mask, strict=True)
    ]
    close(kl_to_come(double(x), torch.tensor(mask)), double(slow))


@pytest.mark.parametrize("garbage", GARBAGE)
def test_kl_to_come_ignores_what_the_mask_hides_and_is_detached(garbage):
    mask = torch.tensor([[True, True, False, False]])
    found = kl_to_come(double([[1.0, 2.0, garbage, garbage]]).requires_grad_(), mask)
    close(found, double([[2.0, 0.0, 0.0, 0.0]]))
    assert not found.requires_grad


def look(seed: int = 0) -> Look:
    random = torch.Generator().manual_seed(seed)
    logprobs, ref = (-3 * torch.rand(B, T, generator=random, dtype=torch.float64) for _ in range(2))
    kl = torch.rand(B, T, generator=random, dtype=torch.float64)
    renyi = 3 * torch.rand(B, T, generator=random, dtype=torch.float64)
    return Look(
        logprobs.requires_grad_(),
        torch.ones(B, T, dtype=torch.float64),
        ref,
        kl.requires_grad_(),
        renyi=renyi.requires_grad_(),
    )


def mask() -> torch.Tensor:
    return torch.arange(T) < torch.tensor([4, 2, 1])[:, None]


def moved(seed: int = 3) -> tuple[Ratios, torch.Tensor]:
    """Ratios of a policy that has moved, and the live token ratio itself."""
    random = torch.Generator().manual_seed(seed)
    token = (0.5 + torch.rand(B, T, generator=random, dtype=torch.float64)).requires_grad_()
    through = token.detach().cumprod(1)
    return Ratios(token, through / token.detach(), through), token


def expected(penalty: Penalty, at: tuple[int, int], seen: Look, ratios: Ratios) -> tuple[float | None, float | None]:
    """(own, to_go) of one token, written from docs/kl.md with plain numbers. own is None, to_go is None: absent."""
    i, t = at
    length = [4, 2, 1][i]
    x = [float(seen.logprobs[i, n].detach() - seen.ref[i, n]) for n in range(T)]
    kl = seen.kl[i].tolist()
    rho = ratios.token[i].tolist()
    before, through = [math.prod(rho[:n]) for n in range(T)], [math.prod(rho[: n + 1]) for n in range(T)]
    later = range(t + 1, length)
    match penalty:
        case Exact():
            return before[t] * kl[t], sum(before[n] * kl[n] for n in later)
        case Chi2():
            chi2 = [math.exp(d) - 1 for d in seen.renyi[i].tolist()]
            return before[t] * chi2[t], sum(before[n] * chi2[n] for n in later)
        case Renyi():
            d = seen.renyi[i].tolist()
            return before[t] * d[t], sum(before[n] * d[n] for n in later)
        case InReward():
            return None, sum(through[n] * x[n] for n in range(t, length))
        case InLoss(estimator="exact"):
            return kl[t], None
        case InLoss(estimator=estimator, ratio=ratio):
            value = x[t] ** 2 / 2 if estimator == "k2" else math.exp(-x[t]) - 1 + x[t]
            return value * (1.0 if ratio == "none" else rho[t]), None
        case FutureSampled():
            return through[t] * x[t] ** 2 / 2, sum(through[n] * x[n] for n in later)
        case _:
            return None, None


@pytest.mark.parametrize("penalty", ALL, ids=repr)
def test_terms_equal_written_out_formulas(penalty):
    seen, (ratios, _) = look(), moved()
    terms = penalty.terms(seen, mask(), ratios)
    for i, t in mask().nonzero().tolist():
        own, to_go = expected(penalty, (i, t), seen, ratios)
        for found, truth in ((terms.own, own), (terms.to_go, to_go)):
            assert (found is None) == (truth is None)
            if found is not None and truth is not None:
                assert math.isclose(found[i, t].item(), truth, rel_tol=EXACT, abs_tol=EXACT)
    assert terms.to_go is None or not terms.to_go.requires_grad
    assert terms.own is None or terms.own.requires_grad


@pytest.mark.parametrize(("ratio", "live"), [("default", True), ("live", True), ("detached", False), ("none", False)])
def test_only_a_live_ratio_carries_gradient(ratio, live):
    (ratios, token) = moved()
    own = InLoss(estimator="k3", ratio=ratio).terms(look(), mask(), ratios).own
    (gradient,) = torch.autograd.grad(own.sum(), token, allow_unused=True)
    assert (gradient is not None and bool((gradient != 0).any())) == live


@pytest.mark.parametrize("penalty", ALL, ids=repr)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_what_the_mask_hides_changes_no_counted_term(penalty, garbage):
    """Values, and the gradient of the masked sum: a rejected or padded position may hold anything, −inf too."""
    seen, (ratios, _) = look(), moved()
    clean = penalty.terms(seen, mask(), ratios)

    def dirtied(x):
        return torch.where(mask(), x.detach(), garbage)

    logprobs, kl, renyi = (dirtied(x).requires_grad_() for x in (seen.logprobs, seen.kl, seen.renyi))
    found = penalty.terms(Look(logprobs, seen.entropy, dirtied(seen.ref), kl, renyi=renyi), mask(), ratios)
    for a, b in zip(clean, found, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert torch.equal(a[mask()], b[mask()])
    if found.own is not None:
        total = torch.where(mask(), found.own, 0.0).sum()
        for gradient in torch.autograd.grad(total, (logprobs, kl, renyi), allow_unused=True):
            assert gradient is None or torch.isfinite(gradient[mask()]).all()


#: What is refused → words of the reason, words of the alternative.
REFUSED = [
    (lambda: InLoss(estimator="k1"), "gradient of exactly zero", "in_reward"),
    (lambda: InReward(estimator="k2"), "vanishes near the reference", 'estimator = "k1"'),
    (lambda: InReward(estimator="k3"), "vanishes near the reference", 'penalty = "exact"'),
    (lambda: InReward(estimator="exact"), "only the credit for later tokens", 'penalty = "exact"'),
    (lambda: InLoss(estimator="k2", ratio="live"), "is no KL", 'ratio = "detached"'),
    (lambda: InLoss(estimator="exact", ratio="live"), "does not depend on the token", "leave ratio out"),
    (lambda: InLoss(estimator="exact", ratio="detached"), "does not depend on the token", 'penalty = "exact"'),
]


@pytest.mark.parametrize(("made", "reason", "alternative"), REFUSED)
def test_a_gradient_that_is_not_what_its_name_says_is_refused(made, reason, alternative):
    with pytest.raises(UsageError) as refused:
        made()
    assert reason in str(refused.value)
    assert alternative in str(refused.value)


def test_the_refused_k1_in_the_loss_really_holds_nothing():
    """Σ_y π(y) ∇ log π(y) = 0: the expected gradient of k1 as a loss, by enumeration of one token."""
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(-1)
    k1 = logp - torch.randn(6, dtype=torch.float64).log_softmax(-1)
    (gradient,) = torch.autograd.grad((logp.exp().detach() * k1).sum(), logits)
    close(gradient, torch.zeros(6, dtype=torch.float64))


def test_every_penalty_is_one_and_says_what_its_gradient_is():
    for name, made in PENALTIES.items():
        penalty = made()
        assert isinstance(penalty, Penalty)
        assert penalty.kind == name
        assert penalty.label
        assert penalty.needs_reference == (name != "none")
