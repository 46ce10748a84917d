"""Ziegler's two forms and PPO's rule, against the figures printed for them and written-out cases."""

import math
from decimal import Decimal

import pytest
from benchmarks.controllers import TARGET, reading

from kleash.beta import PPORule, Ziegler
from kleash.beta.adaptive import ziegler_factor
from kleash.errors import UsageError
from kleash.records import ControllerState

CODE = Ziegler(form="code")
PAPER = Ziegler(form="paper")


def after(law: Ziegler, kl: float, steps: int, beta: float = 0.2) -> ControllerState:
    state = law.init(beta)
    for _ in range(steps):
        state = law.update(state, reading(kl), TARGET)  # 256 sequences
    return state


def steps_to(law: Ziegler, kl: float, ratio: float) -> float:
    """Steps, with a fraction, to multiply beta by `ratio` at this KL."""
    return math.log(ratio) / math.log(after(law, kl, 1).beta / 0.2)


def test_ziegler_printed_figures() -> None:
    """beta 0.2, target 6, KL 12, 256 sequences, horizon 10,000; the paper's K = 0.1."""
    assert f"{after(CODE, 12.0, 1).beta:.6f}" == "0.201024"
    assert (
        f"{after(CODE, 12.0, 100).beta:.10f}" == f"{Decimal('0.2') * Decimal('1.00512') ** 100:.10f}" == "0.3332893739"
    )
    assert f"{steps_to(CODE, 12.0, 2):.2f}" == "135.73"
    assert f"{steps_to(PAPER, 12.0, 2):.3f}" == "35.003"
    assert f"{steps_to(PAPER, 0.0, 1 / 2):.3f}" == "34.310"


def test_the_published_formula_lowers_beta_at_a_negative_kl_and_ours_holds() -> None:
    """The formula itself, error (−5 − 6)/6 clipped to −0.2, gives 0.198976; our law does not use such a reading."""
    assert f"{0.2 * ziegler_factor(-0.2, 256 / 10_000):.6f}" == "0.198976"
    assert after(CODE, -5.0, 1).beta == 0.2


def test_the_codes_gain_is_sequences_over_horizon() -> None:
    doubled = Ziegler(horizon=5_000)
    assert f"{after(doubled, 12.0, 1).beta:.6f}" == "0.202048"
    assert f"{after(Ziegler(form='paper', gain=0.2), 12.0, 1).beta:.6f}" == "0.208000"


def test_a_horizon_that_would_flip_the_sign_is_refused() -> None:
    """At more than 5·horizon sequences the published code multiplies beta by a negative number."""
    with pytest.raises(UsageError, match="lengthen the horizon"):
        after(Ziegler(horizon=51), 0.0, 1)
    assert after(Ziegler(horizon=52), 0.0, 1).beta > 0


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.0, 0.5), (3.99, 0.5), (4.01, 1.0), (6.0, 1.0), (8.99, 1.0), (9.01, 2.0), (600.0, 2.0)],
)
def test_ppo_rule_on_each_side_of_its_band(kl: float, factor: float) -> None:
    """Target 6: halve below 4, double above 9."""
    law = PPORule()
    assert law.update(law.init(0.3), reading(kl), TARGET).beta == 0.3 * factor
