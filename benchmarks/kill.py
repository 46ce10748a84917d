"""Does a run survive `kill -9`? Killed at random moments, resumed, and compared with one left alone: docs/runs/kill.md.

    python -m benchmarks.kill > docs/runs/kill.md

The moments are drawn from a seed: within a step, while a checkpoint is being written, and while the process is still
starting. Exits with 1 if the two runs differ in anything but clock, speed and memory.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from benchmarks.runs import machine, table
from safetensors.torch import load_file

from kleash.demo.run import write_prompts
from kleash.demo.side_by_side import ONE_THREAD
from kleash.report.toml import toml
from kleash.runlog import Sample, current, last_of_each_step, read
from kleash.training import checkpoint, shelf

OUT = Path("runs/bench-kill")
STEPS = 90
#: Fields of a step record that measure the machine, not the run.
OF_THE_MACHINE = ("seconds", "tokens_per_second", "peak_memory_gb")
CONFIG: dict[str, Any] = {
    "model": {"policy": "kleash:tiny", "device": "cpu"},
    "rewards": [{"use": "vader"}],
    "algorithm": {"kind": "grpo", "group_size": 4},
    "kl": {"target": "1 nats/sequence"},
    "train": {
        "steps": STEPS,
        "prompts_per_step": 2,
        "max_new_tokens": 8,
        "learning_rate": 1e-3,
        "checkpoint_every": 2,
        "keep": 2,
    },
}
INTRODUCTION = """\
# Killed and resumed

Made by `python -m benchmarks.kill > docs/runs/kill.md` (`make bench-kill`). The command fails if anything differs.

{machine}

{about}

A run of {steps} steps was left alone. Another with the same config was killed with `kill -9` {kills} times at moments
drawn from seed {seed}, and resumed with `--resume` after each. *Step*: after some more records, and then a random part
of a step. *Write*: while a checkpoint was being written (a new `.part` directory was there), after a random delay.
*Start*: a random time after the process began. "Half written" and "half deleted" are the hidden directories that the
killed process left.
"""

How = Literal["step", "write", "start"]
HOW: tuple[How, ...] = ("step", "write", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When to kill: `how`, after so many more step records (step), and so many seconds later."""

    how: How
    records: int = 0
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lay in the run's directory after a kill, and the step that the next process begins with."""

    kill: Kill
    records: int
    written: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    torn: bool
    resumes: int


def drawn(kills: int, seed: int) -> list[Kill]:
    """The moments: half of them in a checkpoint's writing, and the first of all within a step."""
    chance = random.Random(seed)
    chosen: list[Kill] = []
    for i in range(kills):
        how = chance.choices(HOW, [1, 0, 0] if i == 0 else [4, 5, 1])[0]
        longest = {"step": 0.2, "write": 0.04, "start": 4.0}[how]
        records = chance.randint(1, 4) if how == "step" else 0
        chosen.append(Kill(how=how, records=records, delay=chance.random() * longest))
    return chosen


def killed(command: Sequence[str], run: Path, kill: Kill, console: Path) -> Found:
    """Begins the run, or goes on with it, and kills it at that moment.

    Raises:
        RuntimeError: the process ended by itself.
    """
    wanted = count(run) + kill.records
    moments: dict[How, Callable[[], bool]] = {
        "step": lambda: count(run) >= wanted,
        "write": lambda: bool(hidden(run, shelf.DRAFT, began)),
        "start": lambda: True,
    }
    began = time.time()
    with console.open("ab") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=os.environ | ONE_THREAD)
        while not moments[kill.how]():
            if process.poll() is not None:
                raise RuntimeError(f"the run ended by itself; all it said is in {console}")
            time.sleep(0.002)
        time.sleep(kill.delay)
        process.kill()
        process.wait()
    newest, _ = checkpoint.newest(run / "checkpoints")
    log = run / "events.jsonl"
    return Found(
        kill=kill,
        records=count(run),
        written=hidden(run, shelf.DRAFT, began),
        deleted=hidden(run, shelf.GOING, began),
        torn=log.exists() and log.stat().st_size > 0 and not log.read_bytes().endswith(b"\n"),
        resumes=0 if newest is None else shelf.step_of(newest) or 0,
    )


def hidden(run: Path, kind: str, since: float) -> list[str]:
    """The hidden directories of this kind that were made, or last changed, since then."""
    found = []
    for path in (run / "checkpoints").glob(f".step-*{kind}"):
        with suppress(FileNotFoundError):  # gone again
            if path.stat().st_ctime > since:
                found.append(path.name)
    return sorted(found)


def count(run: Path) -> int:
    """Step records in the log, those that a resume made void included."""
    log = run / "events.jsonl"
    return len(re.findall(rb'"event": "(?:\w+_)?step"', log.read_bytes())) if log.exists() else 0


def differences(one: Path, other: Path) -> Iterator[str]:
    """In words, all in which two runs differ: step records, samples, and every tensor of the last checkpoint."""
    yield from unequal("step", *([plain(s) for s in last_of_each_step(read(r / "events.jsonl"))] for r in (one, other)))
    samples = [[s for s in current(read(r / "samples.jsonl")) if isinstance(s, Sample)] for r in (one, other)]
    yield from unequal("sample", *samples)
    paths = [checkpoint.newest(run / "checkpoints")[0] for run in (one, other)]
    if paths[0] is None or paths[1] is None or paths[0].name != paths[1].name:
        yield f"the last checkpoints are {paths[0]} and {paths[1]}"
        return
    files = [sorted(path.name for path in found.glob("*.safetensors")) for found in paths if found]
    yield from unequal("file", *files)
    for name in files[0]:
        a, b = (load_file(found / name) for found in paths if found)
        if a.keys() != b.keys():
            yield f"{name} holds other tensors"
        yield from (f"{name}: {key} differs" for key in a.keys() & b.keys() if not torch.equal(a[key], b[key]))


def plain(step: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(step).items() if key not in OF_THE_MACHINE}


def unequal(what: str, one: Sequence[Any], other: Sequence[Any]) -> Iterator[str]:
    if len(one) != len(other):
        yield f"{len(one)} {what}s and {len(other)}"
    yield from (f"{what} {i} differs" for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def command(path: Path, *more: str, verb: str = "train") -> list[str]:
    return [sys.executable, "-m", "kleash.cli", verb, str(path), *more]


def compared(out: Path, kills: Sequence[Kill]) -> tuple[list[Found], list[str]]:
    """Both runs afresh; what each kill left, and in what they differ."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    config, console, run = out / "run.toml", out / "console.txt", out / "killed"
    config.write_text(toml({"out": str(run), "data": {"prompts": str(write_prompts(out))}} | CONFIG), encoding="utf-8")
    env = os.environ | ONE_THREAD
    with console.open("ab") as said:
        subprocess.run(command(config, f"out={out / 'whole'}"), stdout=said, stderr=said, env=env, check=True)
    found: list[Found] = []
    for kill in kills:
        begun = (run / "events.jsonl").exists()
        found.append(killed(command(config, *(["--resume"] if begun else [])), run, kill, console))
        print(f"{len(found)}: {found[-1]}", file=sys.stderr, flush=True)
    with console.open("ab") as said:
        subprocess.run(command(config, "--resume"), stdout=said, stderr=said, env=env, check=True)
    return found, list(differences(out / "whole", run))


def page(found: Sequence[Found], different: Sequence[str], seed: int) -> str:
    text = INTRODUCTION.format(machine=machine(), about=ABOUT, steps=STEPS, kills=len(found), seed=seed)
    rows = [
        [
            str(i),
            one.kill.how,
            str(one.records),
            ", ".join(one.written) or "–",
            ", ".join(one.deleted) or "–",
            "yes" if one.torn else "–",
            str(one.resumes),
        ]
        for i, one in enumerate(found, 1)
    ]
    heads = ["kill", "moment", "records in the log", "half written", "half deleted", "torn line", "goes on at step"]
    inside = sum(bool(one.written) for one in found)
    verdict = (
        "**The two runs differ:** " + "; ".join(different[:10])
        if different
        else (
            "**Nothing differs**: every step record (clock, speed and memory aside), every sample, and bit for bit "
            "every tensor of the last checkpoint (weights, optimizer, generators)."
        )
    )
    return f"{text}\n{verdict} {inside} of {len(found)} kills hit a checkpoint half written.\n\n{table(heads, rows)}\n"


ABOUT = """\
The tiny model, full fine-tuning, GRPO, 2 prompts × 4 completions of at most 8 tokens a step, reward VADER, target
1 nats/sequence, a checkpoint every 2 steps of which the newest 2 stay (`train.keep = 2`)."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill a run at random moments and compare it with one left alone.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    found, different = compared(chosen.out, drawn(chosen.kills, chosen.seed))
    print(page(found, different, chosen.seed), end="")
    for what in different:
        print(f"DIFFERS: {what}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
