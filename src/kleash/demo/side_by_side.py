"""Several runs at once, each `kleash train` (or another verb) in a process of its own with one thread."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from kleash.errors import RunError
from kleash.records import Step
from kleash.report.toml import toml
from kleash.runlog import last_of_each_step, read
from kleash.training.interrupt import ended_by_signals

#: One thread each: two runs that both want every core wait for each other at every kernel, many times slower.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
POLL_SECONDS = 0.3
#: What a process that is told to end gets before it is killed.
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run to do: its name for people, its config as plain values (`out` is its directory), and the verb it is for."""

    label: str
    config: Mapping[str, Any]
    verb: str = "train"

    @property
    def path(self) -> Path:
        return Path(self.config["out"])

    @property
    def toml(self) -> Path:
        return self.path.with_name(self.path.name + ".toml")

    @property
    def console(self) -> Path:
        """What its process prints."""
        return self.path.with_name(self.path.name + ".txt")

    @property
    def steps(self) -> int:
        return self.config["train"]["steps"]


#: Told of each step of each run as it is done.
Heard = Callable[[Planned, Step], None]


def train_all(runs: Sequence[Planned], heard: Heard, *, at_once: int, header: str = "") -> None:
    """Trains all of them, at most `at_once` at a time, and returns when the last is done.

    Beside each run's directory lie its config (`.toml`, with `header` on top) and what it printed (`.txt`). Whatever
    ends this call early, Ctrl-C, SIGTERM and SIGHUP among it, ends the runs too.

    Raises:
        RunError: a run failed; the others are ended. The message has its last words.
    """
    waiting = list(runs)
    with ended_by_signals(), _ended_with_us() as going:
        while waiting or going:
            while waiting and len(going) < at_once:
                run = waiting.pop(0)
                going.append(_Going(run, _begin(run, header)))
            sleep(POLL_SECONDS)
            for each in list(going):
                code = each.process.poll()
                each.tell(heard)
                if code is None:
                    continue
                going.remove(each)
                if code != 0:
                    raise RunError(f"the run {each.run.label} failed: {_last_words(each.run.console)}")


@dataclass(slots=True)
class _Going:
    run: Planned
    process: subprocess.Popen[bytes]
    told: int = 0

    def tell(self, heard: Heard) -> None:
        log = self.run.path / "events.jsonl"
        if log.exists():
            steps = last_of_each_step(read(log))
            for step in steps[self.told :]:
                heard(self.run, step)
            self.told = len(steps)


def command(run: Planned) -> list[str]:
    return [sys.executable, "-m", "kleash.cli", run.verb, str(run.toml)]


def _begin(run: Planned, header: str) -> subprocess.Popen[bytes]:
    run.path.parent.mkdir(parents=True, exist_ok=True)
    run.toml.write_text(header + toml(run.config), encoding="utf-8")
    with run.console.open("wb") as console:
        return subprocess.Popen(
            command(run),
            env=os.environ | ONE_THREAD,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def _ended_with_us() -> Iterator[list[_Going]]:
    going: list[_Going] = []
    try:
        yield going
    finally:
        for each in going:
            each.process.terminate()
        try:
            for each in going:
                with suppress(subprocess.TimeoutExpired):
                    each.process.wait(GRACE_SECONDS)
        finally:  # also when a second signal comes meanwhile
            for each in going:
                each.process.kill()
                each.process.wait()


def _last_words(console: Path) -> str:
    lines = [line for line in console.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].removeprefix("kleash: ") if lines else "it said nothing"
    return f"{last} (all it said is in {console})"
