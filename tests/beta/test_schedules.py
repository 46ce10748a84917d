"""beta by the clock."""

import math
from typing import Any

import pytest
from benchmarks.controllers import TARGET, reading
from tests.tolerances import EXACT

from kleash.beta import Constant, Cosine, Linear


@pytest.mark.parametrize("beta", [0.0, 0.05, 1e6])
def test_constant_never_moves(beta: float) -> None:
    law = Constant()
    state = law.init(beta)
    for seen in (None, reading(1e6), reading(-5.0), reading(math.nan)):
        state = law.update(state, seen, TARGET)
    assert (state.beta, state.step, state.held) == (beta, 4, None)


def linear(first: float, end: float, t: int, steps: int) -> float:
    return first + (end - first) * min(t / steps, 1.0)


def cosine(first: float, end: float, t: int, steps: int) -> float:
    return end + (first - end) * (1 + math.cos(math.pi * min(t / steps, 1.0))) / 2


@pytest.mark.parametrize(("kind", "formula"), [(Linear, linear), (Cosine, cosine)])
@pytest.mark.parametrize(("first", "end", "steps"), [(0.2, 0.01, 100), (0.0, 0.3, 7), (0.1, 0.0, 500), (0.5, 0.5, 1)])
def test_schedules_follow_their_closed_form(kind: Any, formula: Any, first: float, end: float, steps: int) -> None:
    law = kind(end=end, steps=steps)
    state = law.init(first)
    for t in range(steps + 5):
        assert state.step == t
        assert state.beta == pytest.approx(formula(first, end, t, steps), rel=EXACT, abs=EXACT)
        state = law.update(state, None, None)
    assert state.beta == end
