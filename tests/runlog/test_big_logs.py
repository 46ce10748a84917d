"""Large files in bounded memory, and what is too large refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from kleash.errors import RunError
from kleash.runlog.importers import files, read_log, table

MEGABYTES = 80
#: Memory of a process beyond the interpreter's with its imports; the file is twice as large.
MOST_GROWTH = 40
PROGRAM = """
import re, sys
from kleash.runlog.importers import read_log
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
log = read_log(sys.argv[1])
print(len(log.step), peak() - before)
"""


def noisy(path: Path) -> None:
    """verl's console: a line of numbers between long lines of samples."""
    noise = "(WorkerDict pid=7) " + "a sample of text, " * 1000 + "\n"
    steps = MEGABYTES * 1_000_000 // len(noise)
    with open(path, "w") as file:
        for step in range(steps):
            file.write(noise)
            file.write(f"(TaskRunner pid=1) step:{step} - critic/score/mean:0.5 - actor/pg_loss:0.{step}\n")


def wordy(path: Path) -> None:
    """JSONL whose rows hold texts beside their numbers."""
    text = "word " * 2000
    with open(path, "w") as file:
        for step in range(MEGABYTES * 1_000_000 // len(text)):
            file.write(f'{{"step": {step}, "reward": 0.5, "reward_std": 0.1, "sample": "{text}"}}\n')


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("write", [noisy, wordy])
def test_memory_does_not_grow_with_the_file(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "run.log"
    write(path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps, growth = done.stdout.split()
    assert int(steps) > 1000
    assert float(growth) < MOST_GROWTH


def test_too_many_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_NUMBERS", 50)
    rows = [f'{{"step": {step}, "reward": 0.5, "a": 1, "b": 2}}\n' for step in range(20)]
    (tmp_path / "run.jsonl").write_text("".join(rows))
    with pytest.raises(RunError, match=r"say which to read: --columns"):
        read_log(tmp_path / "run.jsonl")
    assert len(read_log(tmp_path / "run.jsonl", columns={"reward": "reward"}).step) == 20


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST_LINE", 10_000)
    (tmp_path / "run.log").write_text("word " * 10_000)
    with pytest.raises(RunError, match="this is no log"):
        read_log(tmp_path / "run.log")
