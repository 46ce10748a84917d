"""One script for a machine with a GPU: what is checked and timed there, as one table. Below 8 minutes, offline.

    python -m benchmarks.gpu                     (make bench-gpu)
    python -m benchmarks.gpu --device cpu        (the same in small: that the script itself runs)
    python -m benchmarks.gpu --only fused,qlora

Nothing is fetched: the models are kleash:tiny and a random one of SmolLM2-135M's sizes. Exit code 1 if a check failed.
TRL's step stands beside ours where TRL is installed (`pip install 'trl==1.16.*'`), quantised bases where torchao is.
"""

import argparse
import contextlib
import importlib.metadata
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from benchmarks import gpu_parts
from benchmarks.gpu_parts import Row, Setting
from benchmarks.gpu_trl import trl_step
from benchmarks.runs import processor, table

#: Seconds after which no further part is begun.
LIMIT = 420
JUDGED = {True: "yes", False: "**no**", None: "–"}
PACKAGES = ("torch", "transformers", "peft", "torchao", "trl", "kleash")
PARTS: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "fused": gpu_parts.fused_head,
    "shared": gpu_parts.shared_prompt,
    "tiny": gpu_parts.tiny_run,
    "random": gpu_parts.random_run,
    "qlora": gpu_parts.qlora,
    "drift": gpu_parts.drift,
    "trl": trl_step,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here; --device cpu tries the script in small", file=sys.stderr)
        return 64
    began, rows, good = time.perf_counter(), [], True
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        setting = gpu_parts.setting(device, Path(scratch))
        for name in given.only.split(","):
            for row in _run(name, setting, began):
                rows.append([name, row.what, row.found, row.wanted, JUDGED[row.good]])
                good &= row.good is not False
    print(_facts(device) + "\n")
    print(table(["part", "what", "found", "should be", "good"], rows))
    print(f"\n{time.perf_counter() - began:.0f} s in all.")
    return 0 if good else 1


def _run(name: str, setting: Setting, began: float) -> Iterator[Row]:
    if time.perf_counter() - began > LIMIT:
        yield Row("not run: no time left", "", "", None)
        return
    try:
        yield from PARTS[name](setting)
    except Exception as error:  # one part that fails must not hide the others
        said = (str(error).strip().splitlines() or [""])[0]
        yield Row("failed", f"{type(error).__name__}: {said}", "no error", False)
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()


def _facts(device: torch.device) -> str:
    found = []
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    where = f"{processor()}, in small"
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        where = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    return f"{where}; Python {platform.python_version()}, {', '.join(found)}"


if __name__ == "__main__":
    sys.exit(main())
