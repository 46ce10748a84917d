"""Windows against plain loops, and changes against where they were planted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import DRAWN, FP32, LOOP

from kleash.monitor import causal

VALUES = st.lists(st.one_of(st.floats(-50, 50), st.just(float("nan"))), min_size=1, max_size=40)


def window(x, t, rows):
    return [v for v in x[max(0, t - rows + 1) : t + 1] if v == v]


@given(VALUES, st.integers(1, 12))
def test_windows_equal_loops(values, rows) -> None:
    x = np.array(values)
    mean, spread, rise = causal.mean(x, rows), causal.spread(x, rows), causal.rise(x, rows)
    for t in range(len(x)):
        some = window(x, t, rows)
        assert (mean[t] == pytest.approx(np.mean(some), abs=LOOP)) if some else np.isnan(mean[t])
        if len(some) >= 3:
            assert spread[t] == pytest.approx(np.std(some, ddof=1), abs=FP32)
        else:
            assert np.isnan(spread[t])
        inside = [(i, x[i]) for i in range(max(0, t - rows + 1), t + 1) if x[i] == x[i]]
        if len(inside) >= max(3, 2 * rows // 3):
            slope = np.polyfit([i for i, _ in inside], [v for _, v in inside], 1)[0]
            assert rise.change[t] == pytest.approx(slope * (min(t + 1, rows) - 1), abs=FP32)
        else:
            assert np.isnan(rise.change[t])


@given(VALUES, st.integers(1, 7))
def test_the_middle_equals_a_loop(values, rows) -> None:
    x = np.array(values)
    found = causal.middle(x, rows)
    for t in range(len(x)):
        some = window(x, t, rows)
        assert (found[t] == np.median(some)) if some else np.isnan(found[t])


@given(VALUES, st.integers(1, 6), st.integers(1, 4))
def test_episodes_equal_a_loop(values, hold, release) -> None:
    condition = np.array([v > 0 for v in values])
    expected, on, off, armed = [], 0, release, True
    for t, true in enumerate(condition):
        on, off = (on + 1, 0) if true else (0, off + 1)
        armed = armed or off >= release
        if armed and on >= hold:
            expected.append(t)
            armed = False
    assert causal.episodes(condition, hold=hold, release=release) == expected


@given(VALUES, st.integers(2, 10))
def test_noise_equals_a_loop(values, rows) -> None:
    x = np.array(values)
    found = causal.noise(x, rows)
    for t in range(len(x)):
        jumps = [abs(x[i] - x[i - 1]) for i in range(max(1, t - rows + 1), t + 1)]
        some = [jump for jump in jumps if jump == jump]
        assert (found[t] == pytest.approx(np.median(some) / 0.9539)) if some else np.isnan(found[t])


def test_noise_of_normals_is_their_deviation_and_a_trend_adds_none() -> None:
    x = np.random.default_rng(0).normal(scale=2.0, size=20_000)
    assert causal.noise(x, 5000)[-1] == pytest.approx(2.0, rel=DRAWN)
    assert causal.noise(x + 0.01 * np.arange(20_000), 5000)[-1] == pytest.approx(2.0, rel=DRAWN)


@pytest.mark.parametrize("where", [20, 60, 150])
@pytest.mark.parametrize("kind", ["jump", "bend"])
def test_a_change_is_dated_where_it_was_planted(kind, where) -> None:
    row = np.arange(200)
    change = 5.0 * (row >= where) if kind == "jump" else 0.1 * np.maximum(row - where, 0)
    x = change + np.random.default_rng(1).normal(scale=0.3, size=200)
    found = causal.onset(x, 199)
    assert abs(found.row - where) <= max(found.within, 4)
    assert found.within <= 20


def test_a_line_from_the_first_row_began_there() -> None:
    assert causal.onset(np.linspace(0, 8, 300), 150).row <= 3


def test_long_logs_are_dated_as_well() -> None:
    x = np.concatenate([np.zeros(30_000), np.ones(20_000)]) + np.random.default_rng(2).normal(scale=0.1, size=50_000)
    found = causal.onset(x, 49_999)
    assert abs(found.row - 30_000) <= max(found.within, 300)


@pytest.mark.parametrize("where", [60, 100, 150])
def test_a_knee_is_told_from_the_learning_before_it(where) -> None:
    """A line all along, steeper from some row on: the change is the knee, not the run's first row."""
    row = np.arange(200)
    x = 0.01 * row + 0.1 * np.maximum(row - where, 0) + np.random.default_rng(3).normal(scale=0.1, size=200)
    found = causal.onset(x, 199)
    assert abs(found.row - where) <= 6


def test_medians_in_pieces_are_medians() -> None:
    x = np.random.default_rng(4).normal(size=causal._AT_ONCE + 50)
    found = causal.middle(x, 5)
    assert all(found[t] == np.median(x[t - 4 : t + 1]) for t in range(causal._AT_ONCE - 30, len(x)))
