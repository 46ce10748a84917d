"""Every event survives JSON, every line is valid JSON, and a log of another schema is told apart."""

import json
import math
import subprocess
import sys
import typing
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kleash.errors import RunError
from kleash.records import Reading, Step
from kleash.runlog import (
    SCHEMA_VERSION,
    Checkpoint,
    Evaluation,
    Event,
    Notice,
    Resume,
    RunEnd,
    RunStart,
    Sample,
    current,
    from_json,
    last_of_each_step,
    to_json,
)
from kleash.runlog.findings import Finding, Found
from kleash.runlog.judged import Judged
from kleash.runlog.offline import OfflineEvaluation, OfflineStep
from kleash.runlog.schema import EVENTS, ReferenceChange, Rollback

#: Records of what runs on rows.
OFFLINE: tuple[type, ...] = typing.get_args(OfflineStep | OfflineEvaluation)

texts = st.text()
floats = st.floats()  # with NaN and infinities
numbers = st.none() | floats
counts = st.integers(0, 2**40)
readings = st.builds(
    Reading,
    kind=st.sampled_from(["kl_ref", "kl_old", "kl_sampler"]),
    value=floats,
    unit=st.sampled_from(["nats/token", "nats/sequence"]),
    estimator=st.sampled_from(["exact", "k1", "k2", "k3"]),
    n_prompts=counts,
    n_sequences=counts,
    n_tokens=counts,
    standard_error=numbers,
    q95=numbers,
    q99=numbers,
    max=numbers,
    invalid=st.none() | texts,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=4)
scores = st.dictionaries(texts, numbers, max_size=3)


def fields_of(record: type) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each field of a record, by its annotation, so that a new field is covered by itself."""
    by_type = {
        "int": counts,
        "str": texts,
        "bool": st.booleans(),
        "float": floats,
        "float | None": numbers,
        "int | None": st.none() | counts,
        "str | None": st.none() | texts,
        "Reading | None": st.none() | readings,
        "dict[str, float | None]": scores,
        "dict[str, float]": st.dictionaries(texts, floats, max_size=3),
        "list[tuple[int, float, float]]": st.lists(st.tuples(counts, floats, floats), max_size=3),
        "dict[str, int]": st.dictionaries(texts, counts, max_size=3),
    }
    hints = typing.get_type_hints(record)
    return {f.name: by_type[annotation(hints[f.name])] for f in fields(record)}


def annotation(hint: Any) -> str:
    """How the type is written: "int", "Reading | None", "dict[str, int]"."""
    return hint.__name__ if hint in (int, float, str, bool) else str(hint).replace("kleash.records.", "")


events = st.one_of(
    st.builds(
        RunStart,
        config=objects,
        started=texts,
        versions=st.dictionaries(texts, texts, max_size=3),
        fingerprints=objects,
        argv=st.lists(texts, max_size=3),
    ),
    st.builds(Step, **fields_of(Step)),
    st.builds(Evaluation, **fields_of(Evaluation)),
    *(st.builds(kind, **fields_of(kind)) for kind in OFFLINE),
    st.builds(Checkpoint, step=counts, path=texts, score=numbers, kl_ref=st.none() | readings),
    st.builds(Notice, what=texts, text=texts, step=st.none() | counts),
    st.builds(Resume, step=counts, started=st.none() | texts),
    st.builds(Rollback, **fields_of(Rollback)),
    st.builds(Judged, **fields_of(Judged)),
    st.builds(
        Found,
        step=counts,
        action=texts,
        finding=st.builds(
            Finding,
            rule=texts,
            severity=st.sampled_from(["note", "warning", "alarm"]),
            headline=texts,
            what=texts,
            alarm_step=counts,
            since=counts,
            within=st.none() | counts,
            sure=st.sampled_from(["sure", "likely", "possible"]),
            numbers=st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False) | texts, max_size=3),
            before=st.lists(texts, max_size=2),
            after=st.lists(texts, max_size=2),
            clean=st.none() | texts,
            suspect=st.none() | texts,
            do=st.lists(texts, max_size=2),
        ),
    ),
    st.builds(ReferenceChange, step=counts, kind=texts, fingerprint=objects),
    st.builds(RunEnd, reason=texts, step=counts),
    st.builds(
        Sample,
        step=counts,
        prompt=texts | st.lists(objects, max_size=2),
        completion=texts,
        score=numbers,
        scores=scores,
        kl_ref=numbers,
        length=st.none() | counts,
        truncated=st.none() | st.booleans(),
    ),
)


def same(a: Any, b: Any) -> bool:
    """Equal, with NaN equal to NaN and 1 told apart from 1.0 and True."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def refuse_constant(name: str) -> float:
    raise AssertionError(f"{name} is not JSON")


# beartype looks at a random item of each list while the records are built; hypothesis warns of any randomness.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@given(events)
def test_round_trip(event: Event):
    line = to_json(event)
    assert "\n" not in line and line.isascii()
    raw = json.loads(line, parse_constant=refuse_constant)
    assert raw["schema"] == SCHEMA_VERSION and EVENTS[raw["event"]] is type(event)
    back = from_json(line)
    assert type(back) is type(event)
    assert same(asdict(event), asdict(back))
    assert same(asdict(event), asdict(from_json(line.encode())))


def test_every_kind_of_event_is_tried():
    ended = {Found, Judged, Rollback, ReferenceChange, RunEnd, *OFFLINE}
    assert set(EVENTS.values()) == {RunStart, Step, Evaluation, Checkpoint, Notice, Resume, Sample} | ended


def test_the_line_of_a_step_as_written():
    reading = Reading(
        kind="kl_ref", value=4.0, unit="nats/sequence", estimator="exact", n_prompts=2, n_sequences=4, n_tokens=9
    )
    raw = json.loads(to_json(Step(step=3, beta=math.inf, kl_ref=reading, scores={"vader": math.nan, "x": None})))
    assert list(raw)[:4] == ["event", "schema", "step", "beta"]
    assert (raw["event"], raw["schema"], raw["step"], raw["beta"]) == ("step", 1, 3, "Infinity")
    assert raw["kl_ref"]["unit"] == "nats/sequence"
    assert raw["scores"] == {"vader": "NaN", "x": None}
    assert raw["score"] is None


def test_text_that_looks_like_a_number_stays_text():
    notice = Notice(what="NaN", text="Infinity")
    assert from_json(to_json(notice)) == notice


def test_a_lone_surrogate_becomes_a_question_mark():
    sample = Sample(step=0, prompt="p", completion="a\ud83db")
    assert from_json(to_json(sample)) == replace(sample, completion="a?b")


def test_an_older_schema_that_does_not_fit_is_refused_with_the_reason():
    line = json.dumps({"event": "run_end", "schema": 0, "why": "finished"})
    with pytest.raises(
        RunError, match=rf"schema 0, which an older kleash wrote .*schema {SCHEMA_VERSION}.* \(run_end: "
    ):
        from_json(line)


def test_a_newer_schema_is_refused_with_the_reason():
    line = json.dumps({"event": "run_end", "schema": SCHEMA_VERSION + 1, "reason": "finished", "step": 3})
    with pytest.raises(RunError, match=f"schema {SCHEMA_VERSION + 1}, .* reads up to {SCHEMA_VERSION}"):
        from_json(line)


def test_what_is_merely_new_is_left_out():
    line = json.dumps({"event": "run_end", "schema": 1, "reason": "finished", "step": 3, "mood": "good"})
    assert from_json(line) == RunEnd(reason="finished", step=3)
    assert from_json(json.dumps({"event": "finding", "schema": 1, "rule": "x"})) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        ("[]", 'no "event"'),
        ('{"schema": 1}', 'no "event"'),
        ('{"event": "step", "step": 1}', 'no "schema"'),
        ('{"event": "step", "schema": 1, "step": 1}', "step event does not fit its schema: beta: Field required"),
        ('{"event": "step", "schema": 1, "step": "x", "beta": 0}', "step: Input should be a valid integer"),
    ],
)
def test_what_is_not_an_event_is_a_sentence(line, message):
    with pytest.raises(RunError, match=message):
        from_json(line)


def step(number: int, score: float = 0.0) -> Step:
    return Step(step=number, beta=0.1, score=score)


def test_a_resume_makes_later_records_void():
    start = RunStart(config={}, started="t")
    judged = [Evaluation(step=n, how="x", n_prompts=2, n_samples=2) for n in (0, 2, 3)]
    old = [start, judged[0], step(0), step(1), judged[1], Checkpoint(step=2, path="c2")]
    old.append(Notice(what="held", text="x", step=1))
    lost = [
        judged[2],
        step(2, 1.0),
        Notice(what="held", text="x", step=3),
        step(3, 1.0),
        Checkpoint(step=4, path="c4"),
        RunEnd(reason="x", step=4),
    ]
    again = [Resume(step=2), step(2, 2.0)]
    assert current([*old, *lost, *again]) == [*old, *again]
    # step 3 of the first attempt belongs to another history: it is not shown although it was not done again
    assert last_of_each_step([*old, *lost, *again]) == [step(0), step(1), step(2, 2.0)]


def test_notices_outside_a_step_and_samples():
    told = Notice(what="preflight", text="ok")
    samples = [Sample(step=i, prompt="p", completion=str(i)) for i in range(3)]
    assert current([told, *samples, Resume(step=1)]) == [told, samples[0], Resume(step=1)]


def test_the_last_record_of_a_step_counts_and_order_is_restored():
    assert last_of_each_step([step(0), step(2, 1.0), step(1), step(2, 5.0)]) == [step(0), step(1), step(2, 5.0)]
    assert last_of_each_step([]) == []


def test_two_resumes():
    events = [step(0), step(1), Resume(step=1), step(1, 2.0), step(2, 2.0), Resume(step=2), step(2, 3.0)]
    assert last_of_each_step(events) == [step(0), step(1, 2.0), step(2, 3.0)]


def test_reading_a_log_loads_no_torch():
    code = "import sys, kleash.runlog; sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
