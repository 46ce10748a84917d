"""A log of ours read as it grows says at each moment what a fresh reader says, and reads each byte once."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kleash.errors import RunError
from kleash.monitor import Watched, texts
from kleash.records import Reading, Step
from kleash.runlog import Evaluation, Event, Resume, Rollback, RunEnd, RunStart, Sample
from kleash.runlog.findings import Finding, Found
from kleash.runlog.importers.growing import Growing
from kleash.runlog.importers.kleash import OwnLog, read_run
from kleash.runlog.schema import to_json
from kleash.runlog.series import TrainLog

FOUND = Finding(rule="kl spike", severity="warning", headline="a spike", what="the KL rose", alarm_step=2, since=1)


def step(number: int, score: float) -> Step:
    kl = Reading(
        kind="kl_ref", value=score + number, unit="nats/sequence", estimator="exact", n_prompts=2, n_sequences=4,
        n_tokens=40,
    )  # fmt: skip
    return Step(step=number, beta=0.1, score=score, kl_ref=kl, length=10.0, target="4 nats/sequence")


def evaluation(number: int, score: float) -> Evaluation:
    return Evaluation(step=number, how="1 each", n_prompts=1, n_samples=1, score=score)


#: By a name, since events must not be made while hypothesis draws: type checks draw from `random` themselves.
MAKE: dict[str, Callable[[int, float], Event]] = {
    "step": step,
    "evaluation": evaluation,
    "resume": lambda n, x: Resume(step=n),
    "rollback": lambda n, x: Rollback(step=n, from_step=9, why="w", learning_rate=0.1, number=1),
    "found": lambda n, x: Found(step=n, action="warn", finding=FOUND),
    "sample": lambda n, x: Sample(step=n, prompt="a", completion=f"text {x}"),
    "end": lambda n, x: RunEnd(reason="interrupted", step=n),
}
EVENTS = st.lists(st.tuples(st.sampled_from(sorted(MAKE)), st.integers(0, 6), st.floats(0, 1)), min_size=1, max_size=12)


def same(a: TrainLog, b: TrainLog) -> None:
    assert list(a.step) == list(b.step)
    assert a.columns.keys() == b.columns.keys()
    for name, column in a.columns.items():
        np.testing.assert_array_equal(column, b.columns[name], err_msg=name)
    for name in ("kl", "label", "config", "notes", "ended", "sample_steps", "target_unit"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.samples(None) == b.samples(None)


def read(of: OwnLog | Path) -> TrainLog | str:
    try:
        return of.read() if isinstance(of, OwnLog) else read_run(of)
    except RunError as error:
        return str(error)


@given(drawn=EVENTS, cuts=st.lists(st.integers(0, 3000), max_size=5))
@settings(deadline=None, max_examples=40)
def test_what_has_grown_reads_as_if_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, int, float]], cuts: list[int]
) -> None:
    """Cut at any byte of either file, as another process would find it."""
    home, events = tmp_path_factory.mktemp("grows"), [MAKE[name](n, x) for name, n, x in drawn]
    start = to_json(RunStart(config={"out": "x"}, started="now"))
    own = [to_json(e) for e in events if not isinstance(e, Sample)]
    sampled = [to_json(e) for e in events if isinstance(e, Sample | Resume | Rollback)]
    whole = {
        "events.jsonl": "\n".join([start, *own]).encode() + b"\n",
        "samples.jsonl": "\n".join([*sampled, ""]).encode(),
    }
    growing = OwnLog(home)
    for cut in [*sorted(cuts), 10**6]:
        for name, content in whole.items():
            (home / name).write_bytes(content[:cut])
        one, other = read(growing), read(home)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other
        else:
            same(one, other)
    assert growing.found == read_found(home)


def read_found(home: Path) -> list[Found]:
    fresh = OwnLog(home)
    read(fresh)
    return fresh.found


def test_each_byte_is_read_once_and_a_torn_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": ')
    growing = Growing(path)
    assert [*growing.new()] == [(0, b'{"a": 1}')] and growing.torn
    assert [*growing.new()] == []
    path.write_bytes(b'{"a": 1}\n{"b": 2}')
    assert [*growing.new()] == [(9, b'{"b": 2}')] and not growing.torn
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c": 3}\n')
    assert not growing.is_another
    assert [*growing.new()] == [(18, b'{"c": 3}')] and growing.number == 3


@pytest.mark.parametrize("other", [b'{"a": 2}\n{"b": 2}\n', b'{"a": 1}\n', b""])
def test_a_file_that_is_another_is_seen(tmp_path: Path, other: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n')
    growing = Growing(path)
    assert len([*growing.new()]) == 2
    path.write_bytes(other)
    assert growing.is_another


def test_a_run_begun_anew_in_its_place_is_read_anew(tmp_path: Path) -> None:
    log = OwnLog(tmp_path)
    for scores in ([0.1, 0.2, 0.3], [0.5, 0.6], [0.5, 0.6, 0.7]):
        lines = [to_json(RunStart(config={}, started="now")), *(to_json(step(i, x)) for i, x in enumerate(scores))]
        (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
        assert list(log.read().columns["reward"]) == scores


def test_a_damaged_line_is_said_each_time_until_it_is_mended(tmp_path: Path) -> None:
    lines = [to_json(RunStart(config={}, started="now")), '{"event": "step"', to_json(step(0, 0.5))]
    path, log = tmp_path / "events.jsonl", OwnLog(tmp_path)
    path.write_text("\n".join(lines) + "\n")
    for _ in range(2):
        with pytest.raises(RunError, match=r"events.jsonl, line 2"):
            log.read()
    path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    assert len(log.read().step) == 1


def test_texts_are_measured_once_and_a_resumed_steps_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def opening(samples):
        seen.append([sample.completion for sample in samples])
        return 0.0

    monkeypatch.setitem(texts.MEASURES, "opening", opening)
    watched = Watched(tmp_path)

    def grow(events: list[Event], sampled: list[Event]) -> list[list[str]]:
        for name, new in (("events.jsonl", events), ("samples.jsonl", sampled)):
            with (tmp_path / name).open("a") as file:
                file.writelines(to_json(event) + "\n" for event in new)
        seen.clear()
        watched.look()
        return list(seen)

    def text(number: int, word: str) -> Sample:
        return Sample(step=number, prompt="a", completion=word)

    start = RunStart(config={}, started="now")
    assert grow([start, step(0, 0.1), step(1, 0.2)], [text(0, "zero"), text(1, "one")]) == [["zero"], ["one"]]
    assert grow([step(2, 0.3)], [text(2, "two")]) == [["two"]]
    assert grow([], []) == []
    assert grow([Resume(step=2), step(2, 0.4)], [Resume(step=2), text(2, "other")]) == [["other"]]


def test_a_step_without_an_end_of_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(to_json(RunStart(config={}, started="now")) + "\n" + to_json(step(0, 0.5)))
    log = OwnLog(tmp_path)
    assert list(log.read().step) == [0]
    with path.open("a") as file:
        file.write("\n" + json.dumps(json.loads(to_json(step(1, 0.5)))) + "\n")
    assert list(log.read().step) == [0, 1]
