"""`kill -9` of the real process at random moments, and the bench that counts them (benchmarks/kill.py)."""

import subprocess
import sys

import pytest
from benchmarks import kill
from tests.training.small import toml
from tests.training.test_resume import LORA


def test_the_bench_sees_a_difference(tmp_path):
    assert list(kill.unequal("step", [{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}])) == ["step 1 differs"]
    assert list(kill.unequal("step", [1], [1, 2])) == ["1 steps and 2"]


def test_the_moments_are_drawn_of_all_kinds():
    chosen = kill.drawn(20, 0)
    assert {one.how for one in chosen} == set(kill.HOW)
    assert sum(one.how == "write" for one in chosen) >= 6
    assert chosen == kill.drawn(20, 0)
    assert chosen != kill.drawn(20, 1)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_killed_three_times(tmp_path, lora):
    """Within a step, inside a checkpoint's writing, and again within a step."""
    changes = (LORA if lora else {}) | {
        "train__steps": 16,
        "train__checkpoint_every": 3,
        "train__keep": 1,
        "rewards": [{"use": f"{tmp_path / 'rewards.py'}:chance"}],
    }
    path, run, console = toml(tmp_path, **changes), tmp_path / "run", tmp_path / "console.txt"
    subprocess.run(kill.command(path, f"out={tmp_path / 'whole'}"), check=True, capture_output=True)
    moments = [
        kill.Kill(how="step", records=4, delay=0.01),
        kill.Kill(how="write", delay=0.002),
        kill.Kill(how="step", records=2),
    ]
    found = [
        kill.killed(kill.command(path, *["--resume"][: i != 0]), run, moment, console)
        for i, moment in enumerate(moments)
    ]
    assert all(one.records for one in found)
    subprocess.run(kill.command(path, "--resume"), check=True, capture_output=True)
    assert list(kill.differences(tmp_path / "whole", run)) == []
    assert not list((run / "checkpoints").glob(".*"))
    assert len(list((run / "checkpoints").iterdir())) <= 3


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_closed_pipe_ends_no_run(tmp_path):
    """`kleash train … | head -1`: what would be shown goes nowhere, the run goes on."""
    path = toml(tmp_path, train__steps=3)
    with subprocess.Popen(kill.command(path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait()
    assert kill.count(tmp_path / "run") == 4
