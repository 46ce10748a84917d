"""Accuracy and calibration against slow loops, and against preferences drawn from a known model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT, LOOP

from kleash.rl.calibration import Z95, calibration, disagreement, wilson


@given(st.integers(1, 500), st.data())
@settings(deadline=None)
def test_wilson_is_where_the_score_test_just_accepts(n, data):
    """Its ends are the shares p with |x/n − p| = z √(p (1 − p) / n)."""
    right = data.draw(st.integers(0, n))
    found = wilson(float(right), n)
    assert found.value == right / n
    for end in (found.low, found.high):
        if 0 < end < 1:
            assert abs(right / n - end) == pytest.approx(Z95 * math.sqrt(end * (1 - end) / n), rel=LOOP, abs=LOOP)
    assert (found.low == pytest.approx(0, abs=EXACT)) == (right == 0)
    assert (found.high == pytest.approx(1, abs=EXACT)) == (right == n)


def test_wilson_as_printed():
    """Newcombe 1998, table I: 81 of 263 → 0.2553 to 0.3662; 1 of 29 → 0.0061 to 0.1718 (method 3)."""
    assert [round(x, 4) for x in wilson(81.0, 263)[1:]] == [0.2553, 0.3662]
    assert [round(x, 4) for x in wilson(1.0, 29)[1:]] == [0.0061, 0.1718]


@given(st.lists(st.one_of(st.floats(-8, 8), st.sampled_from([0.0, 50.0, -50.0])), min_size=1, max_size=40))
@settings(deadline=None)
def test_calibration_equals_a_slow_loop(differences):
    bins: dict[int, list[tuple[float, float]]] = {}
    right = nll = brier = 0.0
    for d in differences:
        p = 1 / (1 + math.exp(-d))
        won = 1.0 if d > 0 else 0.5 if d == 0 else 0.0
        right, nll, brier = right + won, nll + math.log1p(math.exp(-d)), brier + (1 - p) ** 2
        sure = 1 / (1 + math.exp(-abs(d)))
        bins.setdefault(min(3, int((sure - 0.5) / 0.125)), []).append((sure, won))
    error = sum(abs(sum(w - s for s, w in rows)) for rows in bins.values()) / len(differences)
    found = calibration(torch.tensor(differences, dtype=torch.float64), bins=4)
    assert found.accuracy == wilson(right, len(differences))
    assert found.nll == pytest.approx(nll / len(differences), rel=LOOP)
    assert found.brier == pytest.approx(brier / len(differences), rel=LOOP)
    assert found.error == pytest.approx(error, rel=LOOP, abs=EXACT)
    assert [b.pairs for b in found.bins] == [len(bins[i]) for i in sorted(bins)]


def test_one_that_knows_and_one_that_boasts():
    """Pairs drawn from the model's own differences: it is calibrated. With its differences tripled it is not."""
    rng = np.random.default_rng(0)
    d = rng.normal(size=20_000) * 1.5
    chosen_first = rng.random(d.size) < 1 / (1 + np.exp(-d))
    ahead = torch.from_numpy(np.where(chosen_first, d, -d))
    honest, boasting = calibration(ahead), calibration(3 * ahead)
    assert honest.error < 0.02 < 0.1 < boasting.error
    assert honest.accuracy == boasting.accuracy
    assert honest.nll < boasting.nll
    assert honest.accuracy.low < float(np.mean(1 / (1 + np.exp(-np.abs(d))))) < honest.accuracy.high


def test_disagreement_equals_numpy():
    scores = np.random.default_rng(1).normal(size=(3, 7))
    found = disagreement(torch.from_numpy(scores))
    assert found == pytest.approx(float(np.std(scores, axis=0).mean()), rel=EXACT)
