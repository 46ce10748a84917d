"""The value function's loss against a slow loop, its fit against numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.value_losses import clipped_value_loss, explained_variance

numbers = st.floats(-3, 3)


def double(x):
    return torch.tensor(x, dtype=torch.float64)


@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5),
    st.one_of(st.none(), st.floats(0.05, 2)),
)
@settings(deadline=None)
def test_clipped_value_loss_equals_slow_loop(rows, clip):
    """baselines: vpredclipped = old + clip(v − old, ±ε); ½ max((v − G)², (vpredclipped − G)²)."""
    truth, flags = [], []
    for v, old, G in rows:
        bounded = v if clip is None else old + min(max(v - old, -clip), clip)
        truth.append(0.5 * max((v - G) ** 2, (bounded - G) ** 2))
        flags.append((bounded - G) ** 2 > (v - G) ** 2)
    live, old, G = (double([column]) for column in zip(*rows, strict=True))
    live.requires_grad_()
    found = clipped_value_loss(live, old, G, clip)
    torch.testing.assert_close(found.loss.detach(), double([truth]), rtol=EXACT, atol=EXACT)
    assert found.clipped.tolist() == [flags]


#: V, V_old, return, clip → gradient: alive inside, dead where moving further from the old value would help the fit.
GRADIENTS = [
    (1.0, 1.0, 3.0, 0.2, -2.0),
    (1.5, 1.0, 3.0, 0.2, 0.0),
    (0.5, 1.0, 3.0, 0.2, -2.5),
    (1.5, 1.0, 3.0, None, -1.5),
]


@pytest.mark.parametrize(("value", "old", "target", "clip", "slope"), GRADIENTS)
def test_the_gradient_of_a_clipped_value(value, old, target, clip, slope):
    live = double([[value]]).requires_grad_()
    (gradient,) = torch.autograd.grad(clipped_value_loss(live, double([[old]]), double([[target]]), clip).loss, live)
    assert float(gradient) == pytest.approx(slope, abs=EXACT)


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=2, max_size=8))
@settings(deadline=None)
def test_explained_variance_equals_numpy(rows):
    v, G, mask = zip(*rows, strict=True)
    counted = [(x, y) for x, y, counts in rows if counts]
    found = explained_variance(double([v]), double([G]), torch.tensor([mask]))
    returns = np.array([y for _, y in counted])
    if len(counted) == 0 or np.var(returns) < 1e-3:
        return
    error = returns - np.array([x for x, _ in counted])
    assert found == pytest.approx(1 - np.var(error) / np.var(returns), rel=EXACT, abs=EXACT)


def test_returns_without_spread_explain_nothing():
    ones = torch.ones(2, 3)
    assert explained_variance(ones, ones, torch.ones(2, 3, dtype=torch.bool)) is None
    assert explained_variance(ones, ones, torch.zeros(2, 3, dtype=torch.bool)) is None
