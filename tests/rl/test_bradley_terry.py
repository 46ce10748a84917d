"""The preference loss against the formula in plain Python, its derivative by hand, and where it leads."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT, LOOP

from kleash.rl.bradley_terry import bradley_terry

numbers = st.floats(-20, 20)


def double(x):
    return torch.tensor(x, dtype=torch.float64)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@given(
    st.lists(st.tuples(numbers, numbers, st.floats(0, 3)), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.0, 0.1, 0.5]),
)
@settings(deadline=None)
def test_loss_and_gradient_equal_the_formula(rows, with_margin, centre, careless):
    """d/dr_c = −(1 − ε) σ(x) (1 − σ(x)) / [(1 − ε) σ(x) + ε/2] + 2 centre (r_c + r_r), and its mirror for r_r."""
    losses, slopes = [], []
    for c, r, m in rows:
        s = sigma(c - r - (m if with_margin else 0.0))
        p = (1 - careless) * s + careless / 2
        losses.append(-math.log(p) + centre * (c + r) ** 2)
        push, pull = (1 - careless) * s * (1 - s) / p, 2 * centre * (c + r)
        slopes.append((pull - push, pull + push))
    c, r, m = (double(list(column)) for column in zip(*rows, strict=True))
    c.requires_grad_(), r.requires_grad_()
    found = bradley_terry(c, r, m if with_margin else None, centre=centre, careless=careless)
    torch.testing.assert_close(found.loss.detach(), double(losses), rtol=EXACT, atol=EXACT)
    gradients = torch.autograd.grad(found.loss.sum(), (c, r))
    torch.testing.assert_close(torch.stack(gradients, 1), double(slopes), rtol=LOOP, atol=EXACT)
    without = found.loss.detach() - centre * (c + r).detach().square()
    torch.testing.assert_close(found.preference.detach(), without, rtol=EXACT, atol=LOOP)


@pytest.mark.parametrize("careless", [0.0, 0.2])
def test_far_apart_is_finite(careless):
    c = double([-800.0, 800.0]).requires_grad_()
    found = bradley_terry(c, -c.detach(), careless=careless)
    (gradient,) = torch.autograd.grad(found.loss.sum(), c)
    assert found.loss.isfinite().all()
    assert gradient.isfinite().all()
    assert float(found.loss.detach()[0]) == pytest.approx(-math.log(0.1) if careless else 1600.0, rel=EXACT)


def fitted(counts: dict[tuple[int, int], float], items: int, **settings: float) -> torch.Tensor:
    """The scores at the minimum of the summed loss by Newton's method; what nothing fixes stays where it is."""
    won, lost = torch.tensor(list(counts)).T
    weight = double(list(counts.values()))

    def total(r: torch.Tensor) -> torch.Tensor:
        return (weight * bradley_terry(r[won], r[lost], **settings).loss).sum()

    r = torch.zeros(items, dtype=torch.float64)
    for _ in range(50):
        (gradient,) = torch.autograd.grad(total(live := r.clone().requires_grad_()), live)
        r = r - torch.linalg.pinv(torch.autograd.functional.hessian(total, r)) @ gradient
    return r


#: (winner, loser) → how often. Comparisons along a chain, so that the best fit has a closed form, link by link.
CHAIN: dict[tuple[int, int], float] = {(0, 1): 30, (1, 0): 10, (1, 2): 12, (2, 1): 8, (2, 3): 5, (3, 2): 25}
LINKS = [((0, 1), 30, 40), ((1, 2), 12, 20), ((2, 3), 5, 30)]


def test_the_maximum_likelihood_is_the_closed_form():
    """On a chain r_a − r_b = logit of the share that a won. Centring leaves two items' difference where it was."""
    r = fitted(CHAIN, 4)
    for (a, b), won, n in LINKS:
        assert float(r[a] - r[b]) == pytest.approx(math.log(won / (n - won)), rel=LOOP)
    pair = fitted({(0, 1): 30, (1, 0): 10}, 2, centre=0.1)
    assert pair.tolist() == pytest.approx([math.log(3) / 2, -math.log(3) / 2], rel=LOOP)


def test_careless_raters_are_seen_through():
    """With a share ε labelled by a coin, a wins (1 − ε) σ(d) + ε/2 of the time; only the loss that knows it finds d."""
    truth, careless = 1.5, 0.2
    share = (1 - careless) * sigma(truth) + careless / 2
    counts = {(0, 1): share, (1, 0): 1 - share}
    knowing, not_knowing = fitted(counts, 2, careless=careless), fitted(counts, 2)
    assert float(knowing[0] - knowing[1]) == pytest.approx(truth, rel=LOOP)
    assert float(not_knowing[0] - not_knowing[1]) == pytest.approx(math.log(share / (1 - share)), rel=LOOP)


def test_a_margin_is_held():
    """Where a always wins by a margin m, the loss at r_a − r_b = m + x is that at x without one."""
    c, r = double([2.0, 0.3]), double([0.5, 0.1])
    with_margin = bradley_terry(c + 1.25, r, double([1.25, 1.25]))
    torch.testing.assert_close(with_margin.loss, bradley_terry(c, r).loss, rtol=EXACT, atol=EXACT)
