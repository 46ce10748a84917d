"""`kleash label`: pairs in, preferences out, the rest kept apart; a dead server and `kill -9` lose nothing."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.judge.stub import Stub, serving
from tests.rewards.judge.test_judge import JUDGES
from tests.test_cli import run
from tests.tolerances import EXACT

from kleash.errors import RunError, UsageError
from kleash.rewards.judge import Judge
from kleash.rewards.judge import server as module
from kleash.training.label import label
from kleash.training.pair_files import read_pairs

ROWS: list[dict[str, Any]] = [
    {"prompt": "p0", "a": "short", "b": "much longer", "source": 1},
    {"prompt": "p1", "a": "much longer", "b": "short", "source": 2},
    {"prompt": "p2", "a": "equal", "b": "alike", "source": 3},
    {"prompt": "p3", "a": "same", "b": "same", "source": 4},
    {"prompt": "p4", "a": "", "b": "x", "source": 5},
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "FIRST_WAIT", 0.01)
    Path("judges.py").write_text(JUDGES)
    write(ROWS)


def write(rows: list[dict[str, Any]]) -> None:
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def judge(**args: Any) -> Judge:
    return Judge.load("./judges.py:shorter", {"rubric": "brief", **args})


def test_preferences_ties_and_failures_each_have_a_file():
    found = label("pairs.jsonl", judge(), "out.jsonl")
    sure = pytest.approx(0.9, rel=EXACT)
    assert lines("out.jsonl") == [
        {"prompt": f"p{i}", "chosen": "short", "rejected": "much longer", "source": i + 1, "probability": sure,
         "margin": pytest.approx(0.8, rel=EXACT)}
        for i in range(2)
    ]  # fmt: skip
    even, failed = lines("out.ties.jsonl"), lines("out.failed.jsonl")
    # Of two answers of one length the judge takes the first with 0.2 and neither with 0.8: in both orders alike.
    assert even == [{**ROWS[2], "probability": 0.5}]
    assert failed == [{**ROWS[3], "reason": "a and b are the same"}, {**ROWS[4], "reason": "a is empty"}]
    assert (found.pairs, found.labelled, found.ties, sum(found.failed.values())) == (5, 2, 1, 2)
    assert found.agreement is None
    assert any("5 pairs: 2 labelled, 1 ties, 2 without" in line for line in found.lines())
    assert read_pairs("out.jsonl").margins == [line["margin"] for line in lines("out.jsonl")]


def test_how_far_it_agrees_with_labels_that_are_there():
    sides = [{"prompt": r["prompt"], "chosen": r["a"], "rejected": r["b"]} for r in ROWS[:2]]
    write([*sides, {"prompt": [{"role": "user", "content": "p"}],
                    "chosen": [{"role": "assistant", "content": "hm"}],
                    "rejected": [{"role": "assistant", "content": "hmm!"}]}])  # fmt: skip
    found = label("pairs.jsonl", judge(), "out.jsonl")
    assert found.agreement is not None
    assert found.agreement.value == pytest.approx(2 / 3)
    assert lines("out.jsonl")[2]["chosen"] == [{"role": "assistant", "content": "hm"}]


def test_a_tie_may_be_wide_and_what_was_there_is_replaced():
    label("pairs.jsonl", judge(), "out.jsonl")
    write(ROWS[:2])
    label("pairs.jsonl", judge(), "out.jsonl", tie=0.45)
    assert not Path("out.jsonl").exists()
    assert len(lines("out.ties.jsonl")) == 2
    assert not Path("out.failed.jsonl").exists()


@pytest.mark.parametrize(
    ("rows", "args", "out", "said"),
    [
        ([], {}, "out.jsonl", "there are no pairs"),
        ([{"prompt": "x", "text": "y"}], {}, "out.jsonl", "row 0 has prompt, text"),
        ([ROWS[0], {"prompt": "x", "a": "y"}], {}, "out.jsonl", "row 1 has no a and b"),
        (ROWS, {}, "pairs.jsonl", "another .jsonl file"),
        (ROWS, {}, "out.csv", "another .jsonl file"),
        (ROWS, {"mode": "grade"}, "out.jsonl", "leave out mode"),
        (ROWS, {"rivals": "anchor"}, "out.jsonl", "leave out mode"),
    ],
)
def test_bad_input_is_refused(rows, args, out, said):
    write(rows)
    with pytest.raises(UsageError, match=said):
        label("pairs.jsonl", judge(**args), out)


def test_not_one_verdict_is_an_error():
    refuses = Judge.load("./judges.py:refuses", {"rubric": "brief"})
    with pytest.raises(RunError, match="not one verdict on 6 questions: 6 × the function gave None"):
        label("pairs.jsonl", refuses, "out.jsonl")


def test_a_server_that_dies_loses_nothing(capsys, monkeypatch):
    write([{"prompt": f"p{i}", "a": "x" * (i + 1), "b": "y" * (i + 3)} for i in range(10)])
    stub = Stub()
    with serving(stub):
        command = ["label", "pairs.jsonl", "--judge", stub.url, "--rubric", "long", "--out", "out.jsonl",
                   "model=m", "retries=0", "concurrency=1"]  # fmt: skip
        stub.dies_after = 7
        code, _, err = run(capsys, monkeypatch, *command)
    assert code == 2
    assert "could not be reached for 13 of 20 questions" in err
    assert "the same command goes on" in err
    assert not Path("out.jsonl").exists()
    again = Stub(url=stub.url, port=int(stub.url.rsplit(":")[-1].split("/")[0]))
    with serving(again):
        code, out, _ = run(capsys, monkeypatch, *command, "--json")
    told = json.loads(out)
    assert code == 0
    assert len(again.seen) == 13
    assert told["judge"]["remembered"] == 7
    assert told["labelled"] == len(lines("out.jsonl")) == 10


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_stopped_in_the_middle_it_goes_on(number, capsys, monkeypatch):
    write([{"prompt": f"p{i}", "a": "x" * (i + 1), "b": "y" * (i + 3)} for i in range(10)])
    with serving(Stub(misdeeds=["good"] * 6 + ["silent"] * 50)) as stub:
        arguments = ["label", "pairs.jsonl", "--judge", stub.url, "--rubric", "long", "--out", "out.jsonl",
                     "model=m", "retries=0", "concurrency=1"]  # fmt: skip
        command = [sys.executable, "-m", "kleash.cli", *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while len(stub.seen) < 7:
            time.sleep(0.02)
        began = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
        assert time.monotonic() - began < 8  # not the server's time-out
        assert "Traceback" not in err
        stub.misdeeds.clear()
        asked = len(stub.seen)
        _, out, _ = run(capsys, monkeypatch, *arguments, "--json")
    told = json.loads(out)["judge"]
    assert told["remembered"] == 6
    assert len(stub.seen) - asked == 14
    assert len(lines("out.jsonl")) == 10
