"""How fast logs are read: a process on a log of 1,000 steps, and records of ten numbers by the million.

    make bench-watch-speed                                     (about two minutes)
    python -m benchmarks.watch_speed --records 100000

Every line is a process of its own, with its CPU seconds, so that other work on the machine does not count.
"""

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.runs import processor, table

from kleash.runlog.importers.protobuf import masked_crc32c

PROGRAM = """
import re, sys, time
from kleash.runlog.importers import read_log
log = read_log(sys.argv[1])
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())
print(time.process_time(), int(peak[1]) / 1024, len(log.step), log.label, sep="|")
"""
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


def measured(path: Path) -> tuple[float, float, int, str]:
    """CPU seconds, peak MB, steps and label of reading a log in a new process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    seconds, memory, steps, label = done.stdout.strip().split("|")
    return float(seconds), float(memory), int(steps), label


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
                seconds, memory, steps, label = measured(path)
                size = path.stat().st_size / 1e6
                rows.append([name, label, f"{steps:,}", f"{size:.1f}", f"{seconds:.2f}", f"{memory:.0f}"])
                path.unlink()
    print(table(["log", "read as", "records of 10 numbers", "MB", "CPU seconds, start included", "peak MB"], rows))
    print(f"\n{processor()}")


if __name__ == "__main__":
    main()
