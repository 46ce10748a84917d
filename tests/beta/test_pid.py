"""PI and PID against their textbook form, at the bounds, and when beta is set by hand."""

import math
import random
from dataclasses import replace

import pytest
from benchmarks.controllers import TARGET, reading
from tests.tolerances import EXACT

from kleash.beta import PI, PID


@pytest.mark.parametrize("law", [PI(), PI(kp=0.0, ki=0.3), PID(), PID(kp=0.5, ki=0.02, kd=3.0, error_clip=0.4)])
def test_the_textbook_form(law: PI | PID) -> None:
    """log beta_t = log beta_0 + ki Σ e + kp e_t + kd (e_t − e_{t−1}), summed anew at every step."""
    dice = random.Random(0)
    kls = [6 * math.exp(dice.gauss(0, 0.5)) for _ in range(200)]
    state, errors = law.init(0.05), []
    for kl in kls:
        state = law.update(state, reading(kl), TARGET)
        errors.append(min(law.error_clip, max(-law.error_clip, (kl - 6) / 6)))
        slope = errors[-1] - errors[-2] if len(errors) > 1 else 0.0
        kd = law.kd if isinstance(law, PID) else 0.0
        log_beta = math.log(0.05) + law.ki * math.fsum(errors) + law.kp * errors[-1] + kd * slope
        assert state.beta == pytest.approx(math.exp(log_beta), rel=EXACT)
    assert state.clipped == 0


@pytest.mark.parametrize("law", [PI(), PID()])
@pytest.mark.parametrize(("extreme", "bound", "other"), [(1e3, 100.0, 5.4), (0.0, 1e-4, 6.6)])
def test_it_leaves_a_bound_at_once(law: PI | PID, extreme: float, bound: float, other: float) -> None:
    """1,000 steps pressed against a bound leave no winding: the first error of the other sign moves beta off it."""
    state = law.init(1.0)
    for _ in range(1000):
        state = law.update(state, reading(extreme), TARGET)
    assert state.beta == bound
    assert state.clipped > 600
    freed = law.update(state, reading(other), TARGET)
    assert freed.beta < bound if bound > 1 else freed.beta > bound


def test_pid_without_a_derivative_is_pi() -> None:
    pi, pid = PI().init(0.05), PID(kd=0.0).init(0.05)
    for kl in (0.0, 3.0, 50.0, 7.0, 5.0):
        pi = PI().update(pi, reading(kl), TARGET)
        pid = PID(kd=0.0).update(pid, reading(kl), TARGET)
        assert pi == pid


def test_a_beta_set_by_hand_is_kept() -> None:
    """Doubling beta between two steps doubles every beta after it: the law goes on from there, without a jump back."""
    law = PI()
    state = law.update(law.init(0.05), reading(9.0), TARGET)
    raised = replace(state, beta=2 * state.beta)
    for kl in (7.0, 6.0, 5.0):
        state, raised = (law.update(each, reading(kl), TARGET) for each in (state, raised))
        assert raised.beta == pytest.approx(2 * state.beta, rel=EXACT)


def test_huge_gains_stay_within_the_bounds() -> None:
    law = PID(kp=1e4, ki=1e4, kd=1e4)
    state = law.init(1.0)
    for kl in (1e300, 0.0, 1e300, 1e300, 0.0):
        state = law.update(state, reading(kl), TARGET)
        assert state.beta in (1e-4, 100.0)
