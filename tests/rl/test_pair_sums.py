"""Sums over the texts of pairs against slow loops over plain numbers."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.rl.pair_sums import desensitised_sums, means, sums


@st.composite
def texts(draw):
    """Numbers [2N, T] and a mask with holes."""
    B, T = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 5))

    def table(values):
        return draw(st.lists(st.lists(values, min_size=T, max_size=T), min_size=B, max_size=B))

    return table(st.floats(-4, 0)), table(st.booleans())


def slow(rows, mask, weight):
    """Each text's Σ weight(k, own length, the pair's shorter length) · x_k, k counting the tokens that count from 1."""
    found = []
    lengths = [sum(row) for row in mask]
    for i, (row, counts) in enumerate(zip(rows, mask, strict=True)):
        shorter, total, k = min(lengths[i], lengths[i ^ 1]), 0.0, 0
        for x, here in zip(row, counts, strict=True):
            if here:
                k += 1
                total += weight(k, lengths[i], shorter) * x
        found.append(total)
    return found[0::2], found[1::2]


@given(case=texts(), alpha=st.sampled_from([0.0, 0.3, 1.0]))
@settings(deadline=None)
def test_equals_a_slow_loop(case, alpha):
    rows, mask = case
    counts = torch.tensor(mask)
    x = torch.where(counts, torch.tensor(rows, dtype=torch.float64), math.nan)  # what does not count may be anything
    for found, weight in [
        (sums(x, counts), lambda k, own, shorter: 1.0),
        (means(x, counts), lambda k, own, shorter: 1 / own),
        (desensitised_sums(x, counts, alpha), lambda k, own, shorter: 1.0 if k <= shorter else alpha),
    ]:
        for side, truth in zip(found, slow(rows, mask, weight), strict=True):
            torch.testing.assert_close(side, torch.tensor(truth, dtype=torch.float64), rtol=EXACT, atol=EXACT)
