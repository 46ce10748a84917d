"""What the benches of whole runs share: train those that are missing, and say on what machine."""

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from kleash.demo.run import write_prompts
from kleash.demo.side_by_side import ONE_THREAD, Planned
from kleash.models.catalog import resolve
from kleash.report.toml import toml
from kleash.training.progress import Progress, plain_line
from kleash.training.run import Run
from kleash.training.toml import parse_config


def weights() -> str:
    """SHA-256 of the tiny model's weights."""
    return hashlib.sha256((resolve("kleash:tiny") / "model.safetensors").read_bytes()).hexdigest()


def planned(out: Path, label: str, *, steps: int, seed: int, **changed: Any) -> Planned:
    """A run on the tiny model with the demo's settings; `changed`: whole sections, and learning_rate."""
    train = {"prompts_per_step": 8, "max_new_tokens": 32, "learning_rate": changed.pop("learning_rate", 1e-3)}
    config: dict[str, Any] = {
        "out": str(out),
        "model": {"policy": "kleash:tiny", "device": "cpu"},
        "data": {"prompts": str(write_prompts(out.parent))},
        "rewards": [{"use": "vader"}],
        "train": {"steps": steps, **train, "checkpoint_every": steps, "seed": seed},
    }
    return Planned(label=label, config=config | changed)


def done(run: Planned) -> bool:
    """Whether this very run, on these very weights, is finished."""
    if not (run.toml.exists() and (run.path / "events.jsonl").exists()):
        return False
    return run.toml.read_text(encoding="utf-8") == header() + toml(run.config) and Run(run.path).finished


def train_missing(runs: Sequence[Planned], at_once: int) -> None:
    """Trains what is not `done`, afresh, in `at_once` processes that each do one run after the other."""
    missing = [run for run in runs if not done(run)]
    print(f"{len(runs) - len(missing)} of {len(runs)} runs are there already", file=sys.stderr)
    os.environ |= ONE_THREAD
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(_train, run) for run in missing]
        for finished in as_completed(waiting):
            print(finished.result(), file=sys.stderr, flush=True)


def _train(run: Planned) -> str:
    from kleash.training.api import start

    shutil.rmtree(run.path, ignore_errors=True)
    run.toml.write_text(header() + toml(run.config), encoding="utf-8")
    with run.console.open("w", encoding="utf-8") as file:
        trained = start(parse_config(dict(run.config)), progress=Progress(Console(file=file)))
    _empty(trained.path / "checkpoints", names=run.config["train"].get("keep") == "all")
    return f"{run.path}  {plain_line(trained.steps[-1], run.steps)}"


def _empty(checkpoints: Path, *, names: bool) -> None:
    """A bench is about the log: of its checkpoints at most the directories' names stay."""
    if not names:
        shutil.rmtree(checkpoints)
        return
    for file in checkpoints.rglob("*"):
        if file.is_file():
            file.unlink()


def header() -> str:
    return f"# kleash:tiny, weights {weights()}\n\n"


def machine() -> str:
    """What every page of runs says about where it was made."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"{os.cpu_count()} cores of {processor()}, one thread a run; Python {platform.python_version()}, {packages};\n"
        f"kleash:tiny with weights {weights()[:12]}…"
    )


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
