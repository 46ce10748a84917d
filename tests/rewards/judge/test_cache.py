"""The cache: what is a different question, two processes at once, kill -9, a file that is something else."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from kleash.errors import RunError, UsageError
from kleash.rewards.judge.answers import Said
from kleash.rewards.judge.cache import Cache, key_of
from kleash.rewards.judge.questions import pair

WHO = {"model": "m"}
QUESTION = pair("rubric", "prompt", "a", "b")

WRITER = """
import sys
from pathlib import Path
from kleash.rewards.judge.answers import Said
from kleash.rewards.judge.cache import Cache
cache = Cache.open(Path(sys.argv[1]))
for i in range(int(sys.argv[3])):
    cache.keep(f"{sys.argv[2]}{i}", Said(shares={"A": i / 1e6, "B": 0.1}))
    print(i, flush=True)
"""


def test_what_was_said_comes_back(tmp_path):
    path = tmp_path / "deep" / "judge.sqlite"
    said = [Said(shares={"A": 0.1 + 0.2, "B": 1e-300}, tokens_in=5), Said(text="\x00A\ud83d"), Said(failure="HTTP 400")]
    for i, one in enumerate(said):
        Cache.open(path).keep(str(i), one)
    assert Cache.open(path).find(["0", "1", "2", "3"]) == {str(i): one for i, one in enumerate(said)}


def test_many_keys_at_once(tmp_path):
    cache = Cache.open(tmp_path / "c")
    cache.keep("7", Said(text="A"))
    assert list(cache.find([str(i) for i in range(3000)])) == ["7"]


def test_the_first_answer_stands(tmp_path):
    cache = Cache.open(tmp_path / "c")
    cache.keep("k", Said(text="A"))
    cache.keep("k", Said(text="B"))
    assert cache.find(["k"])["k"].text == "A"


def test_whatever_may_change_the_answer_changes_the_key():
    others = [
        ({"model": "other"}, QUESTION),
        (WHO, pair("another rubric", "prompt", "a", "b")),
        (WHO, pair("rubric", "another prompt", "a", "b")),
        (WHO, pair("rubric", "prompt", "b", "a")),
        (WHO, pair("rubric", "prompt", "a", "b", ties=True)),
        (WHO, QUESTION._replace(sample=1)),
    ]
    keys = {key_of(WHO, QUESTION), *(key_of(who, question) for who, question in others)}
    assert len(keys) == len(others) + 1
    assert key_of(WHO, pair("rubric", "prompt", "a", "b")) == key_of(WHO, QUESTION)


def test_two_processes_write_and_one_is_killed(tmp_path):
    path = tmp_path / "judge.sqlite"
    run = [sys.executable, "-c", WRITER, str(path)]
    both = [subprocess.Popen([*run, name, "100000"], stdout=subprocess.PIPE, text=True) for name in "xy"]
    told = []
    for process in both:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 50:
                break
    for process in both:
        os.kill(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        told.append(max([50, *(int(line) for line in process.stdout.read().split())]))
        process.wait()
    began = time.monotonic()
    for name, last in zip("xy", told, strict=True):
        keys = [f"{name}{i}" for i in range(last + 1)]
        found = Cache.open(path).find(keys)
        assert sorted(found) == sorted(keys)
        assert all(found[key].shares == {"A": i / 1e6, "B": 0.1} for i, key in enumerate(keys))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert time.monotonic() - began < 60


def test_another_file_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but something that somebody wrote " * 100)
    with pytest.raises(UsageError, match="file is not a database; name another file"):
        Cache.open(path)
    assert path.read_text().startswith("not a database")


def test_a_row_that_is_no_answer_is_said(tmp_path):
    cache = Cache.open(tmp_path / "c")
    cache.connection.execute("INSERT INTO said VALUES ('k', '[1, 2]')")
    with pytest.raises(RunError, match="move it away"):
        cache.find(["k"])
