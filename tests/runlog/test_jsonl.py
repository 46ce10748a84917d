"""The log is whole after a kill at any byte, and says which line is damaged when it is not."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kleash.errors import RunError
from kleash.records import Step
from kleash.runlog import Notice, RunStart, Sample, Writer, last_of_each_step, read, to_json

EVENTS = [
    RunStart(config={"out": "runs/ü"}, started="2026-01-01T00:00:00Z"),
    Step(step=0, beta=0.1, score=float("nan")),
    Notice(what="held", text='nested {"a": "}\n"} and 日本語'),
]


def write(path: Path, *events) -> None:
    with Writer(path) as log:
        for event in events:
            log.write(event)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "run" / "events.jsonl"  # the folder is made
    write(path, *EVENTS)
    assert list(map(to_json, read(path))) == list(map(to_json, EVENTS))
    assert path.read_bytes().count(b"\n") == len(EVENTS)


def test_each_record_is_in_the_file_at_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with Writer(path) as log:
        for n, event in enumerate(EVENTS, 1):
            log.write(event)
            assert len(read(path)) == n


def test_opening_again_appends(tmp_path):
    path = tmp_path / "events.jsonl"
    for event in EVENTS:
        write(path, event)
    assert len(read(path)) == 3


def test_killed_at_every_byte_of_the_last_record(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, *EVENTS)
    whole = path.read_bytes()
    start = len(whole) - len(to_json(EVENTS[2])) - 1
    for end in range(start, len(whole) + 1):
        path.write_bytes(whole[:end])
        # only the record with all its bytes, with or without its line end, is there
        expected = 3 if end >= len(whole) - 1 else 2
        assert len(read(path)) == expected, end
        write(path, Step(step=7, beta=1.0))
        after = read(path)
        assert len(after) == expected + 1 and after[-1] == Step(step=7, beta=1.0), end
        assert to_json(after[0]) == to_json(EVENTS[0])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.builds(Notice, what=st.text(max_size=5), text=st.text(max_size=20)), max_size=4), st.data())
def test_killed_at_any_byte_of_any_log(tmp_path, notices, data):
    path = tmp_path / "any.jsonl"
    path.unlink(missing_ok=True)
    write(path, *notices)
    whole = path.read_bytes()
    end = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:end])
    survived = read(path)
    # never a wrong record, and at most the one being written is lost
    assert survived == notices[: len(survived)]
    assert whole[:end].count(b"\n") <= len(survived) <= whole[:end].count(b"\n") + 1
    write(path, Notice(what="again", text=""))
    assert read(path) == [*survived, Notice(what="again", text="")]


def test_a_tail_of_zero_bytes_is_unfinished(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, *EVENTS)
    with open(path, "ab") as file:
        file.write(b"\0" * 100)
    assert len(read(path)) == 3
    write(path, EVENTS[1])
    assert len(read(path)) == 4


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, *EVENTS)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:20] + b"\n" + lines[2])
    with pytest.raises(RunError, match=r"events\.jsonl, line 2: this is not JSON"):
        read(path)


def test_another_files_last_line_is_not_taken_for_torn(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"loss": 1}')
    with pytest.raises(RunError, match="line 1: this is not an event"):
        read(path)


def test_a_missing_file_is_a_sentence(tmp_path):
    with pytest.raises(RunError, match=r"cannot read the run log .*nowhere"):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the run log"):
        Writer(tmp_path / "file" / "events.jsonl")


def test_an_empty_file_is_an_empty_log(tmp_path):
    Writer(tmp_path / "events.jsonl").close()
    assert read(tmp_path / "events.jsonl") == []


class FullDisk:
    """A file that takes `room` bytes and then has no space left."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.file.write(data[: self.room])
        self.room -= taken
        return taken

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_a_full_disk_leaves_whole_records_and_later_ones_follow(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, EVENTS[0])
    log = Writer(path)
    file = log._file
    log._file = FullDisk(file, room=30)
    with pytest.raises(RunError, match="No space left"):
        log.write(EVENTS[1])
    assert path.read_bytes() == to_json(EVENTS[0]).encode() + b"\n"
    log._file = file
    log.write(EVENTS[2])
    assert read(path) == [EVENTS[0], EVENTS[2]]


def test_short_writes_are_continued(tmp_path):
    path = tmp_path / "events.jsonl"
    log = Writer(path)

    class Sips(FullDisk):
        def write(self, data: bytes) -> int:
            return self.file.write(data[:3])

    log._file = Sips(log._file, 0)
    log.write(EVENTS[2])
    assert read(path) == [EVENTS[2]]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
def test_kill_minus_nine_loses_at_most_one_record(tmp_path):
    path = tmp_path / "samples.jsonl"
    code = f"""
        from pathlib import Path
        from kleash.runlog import Sample, Writer
        log = Writer(Path({str(path)!r}))
        for i in range(10**9):
            log.write(Sample(step=i, prompt="p" * 2000, completion="c"))
            print(i, flush=True)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(50):
        child.stdout.readline()
    child.kill()
    reported = child.stdout.read().split("\n")[:-1]  # what it managed to say before it died
    child.wait()
    done = int(reported[-1]) if reported else 49
    samples = read(path)
    assert all(isinstance(sample, Sample) for sample in samples)
    assert [sample.step for sample in samples] == list(range(len(samples)))
    assert len(samples) in (done + 1, done + 2)


def test_steps_done_twice_across_a_kill(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, *(Step(step=i, beta=1.0) for i in range(4)))
    path.write_bytes(path.read_bytes()[:-5])
    write(path, Step(step=2, beta=2.0), Step(step=3, beta=2.0))
    assert [(s.step, s.beta) for s in last_of_each_step(read(path))] == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]


def test_a_log_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "events.jsonl"
    with Writer(path), pytest.raises(RunError, match="another process is writing"):
        Writer(path)
    Writer(path).close()
