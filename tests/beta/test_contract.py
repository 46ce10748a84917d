"""What every law promises: bounds, a state that survives JSON, a config that is strict, no knob without effect."""

import json
import math
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any

import pytest
from benchmarks.controllers import reading
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter, ValidationError

from kleash.beta import CONTROLLERS, PI, PID, Constant, Cosine, Dual, Linear, PPORule, Ziegler
from kleash.records import Controller, ControllerState, Reading, Target

BOUNDED: list[Controller] = [PI(), PID(), Dual(), Ziegler(), Ziegler(form="paper"), PPORule()]
ALL: list[Controller] = [*BOUNDED, Constant(), Linear(end=0.01, steps=9), Cosine(end=0.01, steps=9)]

values = st.one_of(st.floats(), st.floats(0, 50), st.floats(-1, 1))
readings = st.one_of(
    st.none(),
    st.builds(reading, values, st.one_of(st.none(), st.floats(0, 10))),
    st.builds(lambda value: replace(reading(value), invalid="sampler mismatch"), values),
)
targets = st.builds(Target, st.floats(1e-3, 1e3), st.just("nats/sequence"))
stories = st.lists(st.tuples(readings, targets), min_size=1, max_size=60)


def through_json(state: ControllerState) -> ControllerState:
    return ControllerState(**json.loads(json.dumps(asdict(state), allow_nan=False)))


def follow(
    law: Controller, state: ControllerState, story: list[tuple[Reading | None, Target]]
) -> list[ControllerState]:
    states = []
    for seen, target in story:
        state = law.update(state, seen, target)
        states.append(state)
    return states


@settings(max_examples=60, deadline=None)
@given(law=st.sampled_from(BOUNDED), beta=st.floats(1e-4, 100), story=stories)
def test_beta_stays_finite_and_within_its_bounds(law: Any, beta: float, story: Any) -> None:
    states = follow(law, law.init(beta), story)
    assert all(math.isfinite(state.beta) and law.beta_min <= state.beta <= law.beta_max for state in states)
    assert [state.step for state in states] == list(range(1, len(story) + 1))


@settings(max_examples=60, deadline=None)
@given(law=st.sampled_from(ALL), beta=st.floats(1e-4, 100), story=stories, cut=st.integers(0, 60))
def test_a_state_saved_mid_run_goes_on_as_if_never_saved(law: Any, beta: float, story: Any, cut: int) -> None:
    whole = follow(law, law.init(beta), story)
    before = follow(law, law.init(beta), story[:cut])
    saved = through_json(before[-1] if before else law.init(beta))
    assert before + follow(law, saved, story[cut:]) == whole


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_each_law_is_its_config(kind: str) -> None:
    """`kind` is the first field and names the law; an unknown key, nan and inf are errors."""
    law = CONTROLLERS[kind]
    assert is_dataclass(law) and fields(law)[0].name == "kind" and fields(law)[0].default == kind
    assert vars(law)["__pydantic_config__"] == ConfigDict(extra="forbid", allow_inf_nan=False)
    given = {field.name: 3 if field.type is int else 3.0 for field in fields(law) if field.default is MISSING}
    config = TypeAdapter(law)
    made = config.validate_python({"kind": kind, **given})
    assert config.validate_python(asdict(made)) == made == law(**given)
    with pytest.raises(ValidationError, match="betta"):
        config.validate_python({"kind": kind, **given, "betta": 1})
    for name in {field.name for field in fields(law)} & {"end", "kp", "rate", "error_clip", "band"}:
        for value in (math.nan, math.inf):
            with pytest.raises(ValidationError):
                config.validate_python({"kind": kind, **given, name: value})


KNOBS: list[tuple[Any, dict[str, Any]]] = [
    (PI(), {"kp": 0.5, "ki": 0.2, "error_clip": 0.5, "beta_min": 0.04, "beta_max": 0.06}),
    (PID(), {"kp": 0.5, "ki": 0.2, "kd": 2.0, "error_clip": 0.5, "beta_min": 0.04, "beta_max": 0.06}),
    (Dual(), {"rate": 0.04, "error_clip": 0.5, "beta_min": 0.0499, "beta_max": 0.0501}),
    (Ziegler(), {"form": "paper", "horizon": 99, "error_clip": 0.5, "beta_min": 0.0499, "beta_max": 0.0501}),
    (Ziegler(form="paper"), {"gain": 0.2, "error_clip": 0.5, "beta_min": 0.0499, "beta_max": 0.0501}),
    (PPORule(), {"band": 1.1, "factor": 3.0, "beta_min": 0.04, "beta_max": 0.06}),
    (Linear(end=0.1, steps=9), {"end": 0.2, "steps": 8}),
    (Cosine(end=0.1, steps=9), {"end": 0.2, "steps": 8}),
]


@pytest.mark.parametrize(
    ("law", "knob", "value"), [(law, knob, value) for law, turned in KNOBS for knob, value in turned.items()]
)
def test_every_knob_changes_something(law: Any, knob: str, value: Any) -> None:
    story: list[tuple[Reading | None, Target]] = [
        (reading(kl), Target(6.0, "nats/sequence")) for kl in (1.0, 0.0, 12.0, 7.0, 40.0, 40.0, 5.0, 0.5)
    ]
    turned = replace(law, **{knob: value})
    assert follow(law, law.init(0.05), story) != follow(turned, turned.init(0.05), story)


def test_no_knob_is_missing_from_the_test_above() -> None:
    tried: dict[type, set[str]] = {}
    for law, turned in KNOBS:
        tried.setdefault(type(law), {"kind"}).update(turned)
    assert all(tried.get(law, {"kind"}) == {field.name for field in fields(law)} for law in CONTROLLERS.values())
