"""Which readings may steer, which settings make sense, and what is counted."""

import math
from collections.abc import Callable

import pytest
from benchmarks.controllers import TARGET, reading
from jaxtyping import TypeCheckError

from kleash.beta import PI, PID, Constant, Cosine, Dual, Linear, PPORule, Ziegler
from kleash.errors import UsageError
from kleash.records import Controller, Reading, Target

HOLDING: dict[str, Controller] = {
    "pi": PI(),
    "pid": PID(),
    "dual": Dual(),
    "code": Ziegler(),
    "paper": Ziegler(form="paper"),
    "ppo": PPORule(),
}
each_holding = pytest.mark.parametrize("law", HOLDING.values(), ids=HOLDING)


def spoiled(value: float = 6.0, standard_error: float | None = None, **changes: object) -> Reading:
    fields = {name: getattr(reading(value, standard_error), name) for name in Reading.__dataclass_fields__}
    return Reading(**{**fields, **changes})


@each_holding
@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (None, "not measured"),
        (spoiled(math.nan), "not finite: nan"),
        (spoiled(math.inf), "not finite: inf"),
        (spoiled(12.0, invalid="sampler mismatch 0.3 nats/token"), "invalid: sampler mismatch 0.3 nats/token"),
        (spoiled(-5.0, 1.0), "negative beyond noise: -5 ± 1"),
        (spoiled(-0.5, 1.0), "negative within noise: -0.5 ± 1"),
        (spoiled(-0.5), "negative, noise unknown: -0.5"),
    ],
)
def test_a_hold_says_why(law: Controller, seen: Reading | None, why: str) -> None:
    before = law.update(law.init(0.5), spoiled(9.5), TARGET)
    after = law.update(before, seen, TARGET)
    assert after.held == why
    assert (after.beta, after.step) == (before.beta, before.step + 1)
    assert (after.transient, after.previous_error) == (before.transient, before.previous_error)
    assert law.update(after, spoiled(9.5), TARGET).held is None


@each_holding
@pytest.mark.parametrize("standard_error", [None, 0.0, 0.5, 100.0])
@pytest.mark.parametrize("value", [-1e-12, -0.01, -5.0, -math.inf])
def test_a_negative_kl_never_lowers_beta(law: Controller, value: float, standard_error: float | None) -> None:
    """Ziegler's rule, fed −5 nats, lowers beta; here no law does, however wide the error bar."""
    state = law.init(0.2)
    for _ in range(50):
        state = law.update(state, spoiled(value, standard_error), TARGET)
    assert state.beta == 0.2


@each_holding
def test_a_reading_of_zero_is_a_reading(law: Controller) -> None:
    assert law.update(law.init(0.2), spoiled(0.0), TARGET).beta < 0.2


@each_holding
def test_another_unit_kind_or_no_target_is_refused(law: Controller) -> None:
    state = law.init(0.2)
    with pytest.raises(UsageError, match="nats/sequence and the target in nats/token"):
        law.update(state, spoiled(6.0), Target(0.1, "nats/token"))
    with pytest.raises(UsageError, match="nats/sequence and the target in nats/token"):
        law.update(state, spoiled(math.nan), Target(0.1, "nats/token"))
    with pytest.raises(UsageError, match="this reading is kl_old"):
        law.update(state, spoiled(6.0, kind="kl_old"), TARGET)
    with pytest.raises(UsageError, match="holds a KL target and has none"):
        law.update(state, spoiled(6.0), None)


@each_holding
def test_a_multiplying_law_refuses_beta_zero(law: Controller) -> None:
    with pytest.raises(UsageError, match=r"start from a small positive beta such as 0\.05"):
        law.init(0.0)
    for beta in (-0.1, math.nan, math.inf, 1e-9, 1e9):
        with pytest.raises(UsageError, match="outside the controller's bounds"):
            law.init(beta)


@each_holding
def test_both_limits_are_counted(law: Controller) -> None:
    """A KL of 10⁶ for ever: beta ends at beta_max, each further update is counted; so is each error cut short."""
    state, steps = law.init(90.0), 300
    for _ in range(steps):
        state = law.update(state, spoiled(1e6), TARGET)
    assert state.beta == 100.0
    assert 0 < state.clipped <= steps
    again = law.update(state, spoiled(1e6), TARGET)
    assert again.clipped == state.clipped + 1
    assert state.saturated == (0 if isinstance(law, PPORule) else steps)
    assert law.update(state, spoiled(6.0), TARGET).saturated == state.saturated


@pytest.mark.parametrize(
    "make",
    [
        lambda: PI(kp=-1.0),
        lambda: PI(ki=0.0),
        lambda: PI(kp=math.nan),
        lambda: PI(error_clip=math.inf),
        lambda: PI(beta_min=0.0),
        lambda: PI(beta_min=2.0, beta_max=1.0),
        lambda: PI(beta_max=math.inf),
        lambda: PID(kd=-1.0),
        lambda: Dual(rate=0.0),
        lambda: Dual(rate=1.0, error_clip=2.0),
        lambda: Ziegler(form="paper", horizon=1000),
        lambda: Ziegler(form="code", gain=0.1),
        lambda: Ziegler(horizon=0),
        lambda: Ziegler(form="paper", gain=5.0),
        lambda: Ziegler(error_clip=0.0),
        lambda: PPORule(band=1.0),
        lambda: PPORule(factor=0.5),
        lambda: Linear(end=-0.1, steps=10),
        lambda: Linear(end=0.1, steps=0),
        lambda: Cosine(end=math.nan, steps=10),
        lambda: Constant().init(-0.1),
        lambda: Constant().init(math.nan),
    ],
)
def test_a_law_refuses_senseless_settings(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises((UsageError, TypeCheckError), match="letter"):
        Ziegler(form="letter")  # type: ignore[arg-type]
