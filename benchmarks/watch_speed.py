"""How fast `kleash watch` is: its start, records of ten numbers by the million, and looks at a run that grows.

    python -m benchmarks.watch_speed > docs/runs/watch-speed.md         (about six minutes)
    python -m benchmarks.watch_speed --records 100000

Every line is a process of its own, with its CPU seconds, so that other work on the machine does not count.
"""

import argparse
import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.runs import processor, table

from kleash.monitor import Watched
from kleash.records import Step
from kleash.runlog import RunStart, Sample
from kleash.runlog.importers.protobuf import masked_crc32c
from kleash.runlog.schema import to_json

PROGRAM = """
import re, sys, time
from kleash.monitor import examine
from kleash.runlog.importers import read_log
log = read_log(sys.argv[1])
read = time.process_time()
examine(log)
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(read, time.process_time() - read, int(peak[1]) / 1024, len(log.step), log.label, sep="|")
"""
PAGE = """\
# How fast `kleash watch` is

Made by `python -m benchmarks.watch_speed > docs/runs/watch-speed.md`, one thread, {processor}.
Seconds are of CPU, for other work was done on the machine.

## Its start

The whole command on a TRL log of 1,000 steps: {spent:.2f} s, the best of 9.

## Records

Reading and normalising, and all rules on what was read.

{records}

## Looks

A run of ours with 64 samples of 20 words a step, looked at every 20 steps as `[watch]` and `--follow` do.

{looks}"""
KEYS = (
    "loss", "grad_norm", "learning_rate", "reward", "reward_std", "frac_reward_zero_std", "completions/mean_length",
    "completions/clipped_ratio", "kl", "entropy",
)  # fmt: skip
VERL_KEYS = (
    "actor/entropy", "actor/kl_loss", "actor/kl_coef", "actor/pg_loss", "actor/pg_clipfrac", "actor/ppo_kl",
    "actor/grad_norm", "critic/score/mean", "response_length/mean", "response_length/clip_ratio",
)  # fmt: skip


def numbers(step: int) -> Iterator[float]:
    """Ten numbers that are no round ones."""
    return (((step * 7919 + place * 104729) % 1_000_003) / 1_000_003 for place in range(10))


def jsonl(path: Path, records: int) -> None:
    with open(path, "w") as file:
        for step in range(records):
            file.write(json.dumps({"step": step, **dict(zip(KEYS, numbers(step), strict=True))}) + "\n")


def console(path: Path, records: int) -> None:
    """verl's line through Ray's prefix."""
    with open(path, "w") as file:
        for step in range(records):
            pairs = " - ".join(f"{key}:{value!r}" for key, value in zip(VERL_KEYS, numbers(step), strict=True))
            file.write(f"(TaskRunner pid=4242) step:{step} - {pairs}\n")


def state(path: Path, records: int) -> None:
    rows = [{"step": step, **dict(zip(KEYS, numbers(step), strict=True))} for step in range(records)]
    path.write_text(json.dumps({"global_step": records, "log_history": rows, "logging_steps": 1}, indent=2))


def csv(path: Path, records: int) -> None:
    with open(path, "w") as file:
        file.write(",".join(("step", *KEYS)) + "\n")
        for step in range(records):
            file.write(f"{step}," + ",".join(map(repr, numbers(step))) + "\n")


def events(path: Path, records: int) -> None:
    """An event a number, as trainers write them."""
    with open(path, "wb") as file:
        for step in range(records):
            for key, value in zip(KEYS, numbers(step), strict=True):
                tag = f"train/{key}".encode()
                scalar = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", value)
                summary = b"\x0a" + bytes([len(scalar)]) + scalar
                event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10" + varint(step) + b"\x2a" + bytes([len(summary)])
                file.write(framed(event + summary))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def framed(message: bytes) -> bytes:
    size = struct.pack("<Q", len(message))
    return b"".join((size, struct.pack("<I", masked_crc32c(size)), message, struct.pack("<I", masked_crc32c(message))))


#: Container → (file name, writer, share of the records asked for: an event file has ten events a record).
CONTAINERS: dict[str, tuple[str, Callable[[Path, int], None], float]] = {
    "JSONL": ("run.jsonl", jsonl, 1.0),
    "CSV": ("run.csv", csv, 1.0),
    "console of verl": ("run.log", console, 1.0),
    "trainer_state.json": ("trainer_state.json", state, 1.0),
    "event file": ("events.out.tfevents.1700000000.host", events, 0.1),
}


def measured(path: Path) -> list[str]:
    """Label, steps, CPU seconds of reading a log in a new process and of all rules on it, peak MB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    seconds, rules, memory, steps, label = done.stdout.strip().split("|")
    return [label, f"{int(steps):,}", f"{float(seconds):.2f}", f"{float(rules):.2f}", f"{float(memory):.0f}"]


def started(path: Path, times: int = 9) -> float:
    """CPU seconds of the whole command, the best of several."""
    spent = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "kleash.cli", "watch", str(path)], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def looks(folder: Path, steps: int = 1000, every: int = 20, samples: int = 64) -> list[list[str]]:
    """A run of ours that grows by `every` steps between looks: CPU seconds of a look, and of one that begins anew."""
    rng, rows = random.Random(0), []
    vocabulary = [f"word{number}" for number in range(300)]
    watched = Watched(folder)
    for at in range(0, steps, every):
        with (folder / "events.jsonl").open("a") as events, (folder / "samples.jsonl").open("a") as texts:
            if at == 0:
                events.write(to_json(RunStart(config={}, started="now")) + "\n")
            for step in range(at, at + every):
                values = dict(zip(("score", "entropy", "loss", "grad_norm", "length"), numbers(step), strict=False))
                events.write(to_json(Step(step=step, beta=0.1, **values)) + "\n")
                for sample in range(samples):
                    text = " ".join(rng.choices(vocabulary, k=20))
                    texts.write(to_json(Sample(step=step, prompt=f"prompt {sample // 8}", completion=text)) + "\n")
        if at + every in (20, 100, 500, 1000):
            again, anew = _spent(watched.look), _spent(Watched(folder).look)
            rows.append([str(at + every), f"{again:.2f}", f"{anew:.2f}"])
        else:
            watched.look()
    return rows


def _spent(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, write, share) in CONTAINERS.items():
            for count in (1000, int(records * share)):
                path = Path(folder) / file
                write(path, count)
                label, steps, seconds, rules, memory = measured(path)
                size = path.stat().st_size / 1e6
                rows.append([name, label, steps, f"{size:.1f}", seconds, rules, memory])
                path.unlink()
        path = Path(folder) / "trainer_state.json"
        state(path, 1000)
        spent = started(path)
        (Path(folder) / "grows").mkdir()
        grown = looks(Path(folder) / "grows")
    heads = ["log", "read as", "records of 10 numbers", "MB", "seconds to read, start included", "to judge", "peak MB"]
    print(PAGE.format(
        records=table(heads, rows), spent=spent, processor=processor(),
        looks=table(["steps", "a look, 20 steps after the last", "a look that begins anew"], grown),
    ))  # fmt: skip


if __name__ == "__main__":
    main()
