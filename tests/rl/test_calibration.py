"""Accuracy and calibration against slow loops, and against preferences drawn from a known model."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import EXACT, LOOP

from kleash.intervals import wilson
from kleash.rl.calibration import calibration, disagreement


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
    share = right / len(differences)
    assert found.accuracy == (share, *wilson(share, len(differences)))
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
