"""The three forms of the ratios on the KL's charges, against slow loops over plain numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.errors import UsageError
from kleash.kl.penalties import Chi2, Exact, FutureSampled, InReward, Renyi
from kleash.kl.ratios import Ratios, importance_ratios
from kleash.kl.terms import charge_of_positions
from kleash.training.toml import parse_config

GARBAGE = [math.nan, math.inf, -math.inf, 1e30]
FORMS = ["prefix", "sequence", "token"]


@st.composite
def tables(draw):
    """Two tables of log-probs [B, T] and a mask with holes."""
    b, t = draw(st.integers(1, 4)), draw(st.integers(1, 5))

    def table(values):
        return draw(st.lists(st.lists(values, min_size=t, max_size=t), min_size=b, max_size=b))

    return table(st.floats(-4, 0)), table(st.floats(-4, 0)), table(st.booleans())


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def close(found, truth) -> None:
    torch.testing.assert_close(found, double(truth), rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cap", [None, 1.0, 5.0])
@given(case=tables())
@settings(deadline=None)
def test_ratios_equal_slow_loop(case, cap, form):
    logprobs, sampled, mask = case
    rows = [
        [math.exp(new) / math.exp(was) if counts else 1.0 for new, was, counts in zip(*row, strict=True)]
        for row in zip(logprobs, sampled, mask, strict=True)
    ]
    before, through, score = [], [], []
    for row in rows:
        places = range(len(row))
        if form == "prefix":
            before.append([math.prod(row[:n]) for n in places])
            through.append([math.prod(row[: n + 1]) for n in places])
        else:
            before.append([math.prod(row) if form == "sequence" else 1.0] * len(row))
            through.append(before[-1])
        score.append(row if form == "token" else [1.0] * len(row))

    def bounded(table):
        return [[x if cap is None else min(x, cap) for x in row] for row in table]

    (token, found_before, found_through, found_score), truncations = importance_ratios(
        double(logprobs), double(sampled), torch.tensor(mask), cap, form
    )
    close(token, rows)
    close(found_before, bounded(before))
    close(found_through, bounded(through))
    close(found_score * torch.ones_like(token), bounded(score))
    flat = [max(x) for table in zip(before, through, score, strict=True) for x in zip(*table, strict=True)]
    # A product within rounding of the cap may fall on either side of it.
    if cap is not None and not any(math.isclose(x, cap, rel_tol=EXACT) for x in flat):
        counted = [m for row in mask for m in row]
        assert truncations == sum(x > cap and m for x, m in zip(flat, counted, strict=True))


def test_truncations_are_counted():
    logprobs, old = double([[0.0, 0.0, 0.0]]), double([[-1.0, -1.0, -1.0]])
    everything = torch.ones(1, 3, dtype=torch.bool)
    found, truncations = importance_ratios(logprobs, old, everything, cap=5.0)
    close(found.before, [[1.0, math.e, 5.0]])  # e² = 7.39 meets the cap
    close(found.through, [[math.e, 5.0, 5.0]])
    assert truncations == 2
    assert importance_ratios(logprobs, old, torch.tensor([[True, True, False]]), cap=5.0).truncations == 1
    assert importance_ratios(logprobs, old, everything, 5.0, "sequence").truncations == 3
    assert importance_ratios(logprobs, old, everything, 5.0, "token").truncations == 0
    assert importance_ratios(logprobs, old, everything, 2.0, "token").truncations == 3
    assert importance_ratios(logprobs, old, everything, 1.0, None).truncations == 0


@pytest.mark.parametrize("form", FORMS)
def test_ratios_of_an_unmoved_policy_are_exactly_one(form):
    logprobs, one = (torch.randn(3, 4, dtype=torch.float64) - 2).requires_grad_(), torch.ones(3, 4, dtype=torch.float64)
    ratios, truncations = importance_ratios(logprobs, logprobs.detach(), one.bool(), 5.0, form)
    assert truncations == 0
    for ratio in (ratios.token, ratios.before, ratios.through, ratios.score * one):
        assert torch.equal(ratio, one)
    assert not (ratios.before.requires_grad or ratios.through.requires_grad or ratios.credit.requires_grad)
    (gradient,) = torch.autograd.grad(ratios.token.sum(), logprobs)
    close(gradient, [[1.0] * 4] * 3)  # ∇ρ = ρ ∇log π


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("garbage", GARBAGE)
def test_ratios_ignore_what_the_mask_hides(garbage, form):
    mask = torch.tensor([[True, False, True], [True, True, False]])
    new, old = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    dirty = torch.where(mask, new, garbage).requires_grad_()
    clean, _ = importance_ratios(new, old, mask, 5.0, form)
    found, _ = importance_ratios(dirty, torch.where(mask, old, garbage), mask, 5.0, form)
    for name in ("token", "before", "through", "credit"):
        assert torch.equal(getattr(found, name), getattr(clean, name))
    (gradient,) = torch.autograd.grad(found.token.sum(), dirty)
    assert torch.isfinite(gradient).all()
    assert (gradient[~mask] == 0).all()


def test_exact_is_the_prefix_ratio_kept_in_the_graph():
    """∇ Σ_t ρ_{<t} D_t with a live product, written out, is own term plus credit, sample by sample."""
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    random = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, generator=random, dtype=torch.float64).requires_grad_()
    old = torch.randn(2, 5, generator=random, dtype=torch.float64)

    def charge(logprobs):
        return (logprobs.exp() + logprobs.roll(1, 1)).square()

    live = torch.zeros((), dtype=torch.float64)
    for i, t in mask.nonzero().tolist():
        live = live + math.prod([(x[i, s] - old[i, s]).exp() for s in range(t)]) * charge(x)[i, t]
    (truth,) = torch.autograd.grad(live, x)
    terms = charge_of_positions(charge(x), mask, importance_ratios(x, old, mask, None).ratios)
    assert terms.own is not None
    assert terms.to_go is not None
    (found,) = torch.autograd.grad(torch.where(mask, terms.own + terms.to_go * x, 0.0).sum(), x)
    torch.testing.assert_close(found, truth, rtol=EXACT, atol=EXACT)


def test_a_form_that_is_not_the_default_says_what_it_does():
    for made in (Exact, InReward, FutureSampled, Chi2, Renyi):
        plain = made().label
        assert made(importance="sequence").label.startswith(plain + "; after the first update")
        assert "noisier" in made(importance="sequence").label
        assert "biased" in made(importance="token").label


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"kind": "rloo", "off_policy": "full", "clip": "none"}}, "contradict each other"),
        ({"algorithm": {"kind": "ppo"}, "penalty": "in_reward"}, "would not be used"),
    ],
)
def test_a_form_that_would_not_be_used_is_refused(changes, said):
    penalty = {"kind": changes.get("penalty", "exact"), "importance": "token"}
    tree = {
        "out": "runs/x", "model": {"policy": "kleash:tiny"}, "data": {"prompts": "p.txt"},
        "rewards": [{"use": "vader"}], "algorithm": changes["algorithm"], "kl": {"penalty": penalty},
    }  # fmt: skip
    with pytest.raises(UsageError, match=said):
        parse_config(tree)


def test_a_score_left_out_is_one():
    one = torch.ones(1, 2)
    assert torch.equal(Ratios(one, one, 2 * one).credit, 2 * one)
