"""The monitor beside the loop: what it finds is what the file says, and each action does what it is called."""

from pathlib import Path

import pytest
from tests.training.small import events, settings, steps

from kleash.errors import RunError, UsageError
from kleash.monitor import examine
from kleash.runlog import Checkpoint, Found, Notice, Rollback
from kleash.runlog.importers import read_log
from kleash.training.api import start
from kleash.training.recovery import MOST_ROLLBACKS
from kleash.training.run import Run
from kleash.training.toml import parse_config
from kleash.training.watch_config import WatchSpec

#: A reward that never changes: 20 rows of it are a dead run, found at the 21st.
FLAT = {"train__steps": 30, "train__checkpoint_every": 5, "train__keep": "all", "train__max_new_tokens": 4}


def run(directory: Path, **changes) -> Run:
    tree = settings(directory, **FLAT | changes)
    tree["rewards"] = [{"use": f"{directory / 'rewards.py'}:flat"}]
    resume = (Path(tree["out"]) / "events.jsonl").exists()
    return start(parse_config(tree), resume=resume)


def found(made: Run) -> list[Found]:
    return events(made.path, Found)


def test_what_is_found_live_is_what_the_file_says(tmp_path: Path) -> None:
    made = run(tmp_path, watch={"every": 5})
    live = found(made)
    assert [(event.step, event.action, event.finding.rule) for event in live] == [(24, "warn", "dead run")]
    later = [one for one in examine(read_log(made.path)).findings if one.severity != "note"]
    assert [(one.rule, one.alarm_step, one.since) for one in later] == [
        (event.finding.rule, event.finding.alarm_step, event.finding.since) for event in live
    ]
    assert made.ended == "finished"
    assert "the run is dead since step 0" in (made.path / "report.html").read_text()


def test_never_to_look_finds_nothing(tmp_path: Path) -> None:
    assert found(run(tmp_path, watch={"every": 0})) == []


def test_stopping_saves_first(tmp_path: Path) -> None:
    made = run(tmp_path, watch={"every": 7, "on_finding": "stop"})
    assert made.ended == "finding"
    assert steps(made.path)[-1].step == 20
    assert events(made.path, Checkpoint)[-1].step == 21


def test_a_stopped_run_goes_on_and_is_not_stopped_for_the_same(tmp_path: Path) -> None:
    run(tmp_path, watch={"every": 7, "on_finding": "stop"})
    assert run(tmp_path, watch={"every": 7, "on_finding": "stop"}).ended == "finished"


def test_the_learning_rate_is_halved(tmp_path: Path) -> None:
    made = run(tmp_path, watch={"every": 5, "on_finding": "lower_lr"})
    rates = {step.step: step.learning_rate for step in steps(made.path)}
    assert (rates[24], rates[25], rates[29]) == (1e-3, 5e-4, 5e-4)


def test_beta_is_doubled(tmp_path: Path) -> None:
    made = run(tmp_path, kl={"beta": 0.1}, watch={"every": 5, "on_finding": "tighten"})
    betas = {step.step: step.beta for step in steps(made.path)}
    assert (betas[24], betas[25], betas[29]) == (0.1, 0.2, 0.2)


def test_nothing_times_two_is_said_to_be_a_warning(tmp_path: Path) -> None:
    made = run(tmp_path, kl={"penalty": "none"}, watch={"every": 5, "on_finding": "tighten"})
    assert [event.action for event in found(made)] == ["warn"]


def test_going_back_goes_before_the_change_and_not_for_ever(tmp_path: Path) -> None:
    """The reward is flat from step 0 on: back to the start each time, with a lower rate, and in the end a stop."""
    made = run(tmp_path, watch={"every": 5, "on_finding": "rollback"})
    went = events(made.path, Rollback)
    assert [(event.step, event.from_step) for event in went] == [(0, 25)] * MOST_ROLLBACKS
    assert [event.learning_rate for event in went] == [5e-4, 2.5e-4, 1.25e-4]
    assert made.ended == "finding"
    assert steps(made.path)[0].learning_rate < 1.25e-4 * 1.01


def test_going_back_takes_the_newest_checkpoint_before_the_change(tmp_path: Path) -> None:
    """Scores stand still from step 12 on, when the reward's own clock runs out."""
    tree = settings(tmp_path, **FLAT | {"train__steps": 40, "watch": {"every": 5, "on_finding": "rollback"}})
    (tmp_path / "later.py").write_text(
        "import random\ncalls = 0\n"
        "def score(completions, **columns):\n"
        "    global calls\n    calls += 1\n"
        "    return [2 + random.random() if calls < 14 else 0.5 for _ in completions]\n"
    )
    tree["rewards"] = [{"use": f"{tmp_path / 'later.py'}:score"}]
    made = start(parse_config(tree))
    first = events(made.path, Rollback)[0]
    assert abs(int(first.why.rsplit(" ", 1)[1]) - 13) <= 1
    # The checkpoint that the finding itself names clean, not one within its own ±.
    dead = next(event.finding for event in found(made) if event.finding.rule == "dead run")
    assert dead.clean is not None
    assert first.step == int(Path(dead.clean).name.rsplit("-", 1)[1])
    assert first.step <= dead.since - (dead.within or 0)


def test_a_look_that_fails_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the monitor stumbles over: it is said at each look, kept in the log, and training goes on."""
    broken = iter([RunError("events.jsonl, line 3: damaged"), ZeroDivisionError("a rule's own mistake")])

    class Stumbles:
        def __init__(self, *given: object, **named: object) -> None: ...

        def look(self) -> None:
            raise next(broken)

    monkeypatch.setattr("kleash.training.watch.Watched", Stumbles)
    made = run(tmp_path, train__steps=10, watch={"every": 5, "on_finding": "stop"})
    assert made.ended == "finished"
    said = [(event.step, event.text) for event in events(made.path, Notice) if event.what == "watch"]
    assert [step for step, _ in said] == [4, 9]
    assert "RunError: events.jsonl, line 3: damaged" in said[0][1]
    assert "ZeroDivisionError" in said[1][1]


def test_a_run_that_was_stopped_and_resumed_is_the_same(tmp_path: Path) -> None:
    """Beta is tightened after step 24 in both: once in one go, once with the end of a process right there."""
    options = {"kl": {"beta": 0.1}, "watch": {"every": 5, "on_finding": "tighten"}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = run(tmp_path / "a", **options)
    run(tmp_path / "b", **options, train__steps=25)
    again = run(tmp_path / "b", **options)
    assert [(s.step, s.beta, s.kl_ref) for s in steps(whole.path)] == [
        (s.step, s.beta, s.kl_ref) for s in steps(again.path)
    ]


def test_what_would_never_act_is_refused() -> None:
    with pytest.raises(UsageError, match="would never act"):
        WatchSpec(every=0, on_finding="stop")
    with pytest.raises(UsageError, match="at least 1 step"):
        WatchSpec(every=-1)
