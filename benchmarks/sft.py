"""What supervised fine-tuning does to two models, in full and by LoRA: printed as docs/runs/sft.md.

    python -m benchmarks.sft > docs/runs/sft.md

Runs that are finished in runs/bench-sft are not done again.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.runs import machine, table

from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.toml import parse

OUT = Path("runs/bench-sft")
TEXTS, HELD_OUT = "recipes/tiny_texts.jsonl", "recipes/tiny_texts_held_out.jsonl"
TRAIN = {"epochs": 3, "batch_size": 16, "checkpoint_every": 10}
RUNS: dict[str, dict[str, Any]] = {
    "tiny, all weights": {"model": {"policy": "kleash:tiny"}, "train": TRAIN | {"learning_rate": 3e-4}},
    "SmolLM2, LoRA r = 16": {"model": {"policy": "kleash:smollm2", "adapter": {"rank": 16}}, "train": TRAIN},
    "SmolLM2, all weights": {"model": {"policy": "kleash:smollm2"}, "train": TRAIN},
}

INTRODUCTION = """\
# Supervised fine-tuning, run

Made by `python -m benchmarks.sft > docs/runs/sft.md` (`make bench-sft`); finished runs are kept and not done again.

{machine}

160 praising notes of the tiny model's grammar (`recipes/tiny_texts.jsonl`: four words asked, the rest answered), 40
more held out; three epochs of batches of 16, learning rates by default (2e-4 for LoRA, 2e-5 for all weights; 3e-4 for
the tiny model). Loss and KL are per counted token of the held-out notes, ± a standard error by note; the KL is exact,
of the model to the one it started as, on that given text.
"""


def finished(name: str, changes: dict[str, Any]) -> OfflineRun:
    out = OUT / name.lower().replace(",", "").replace("=", "").replace(" ", "-")
    run = OfflineRun(out)
    if (out / "events.jsonl").exists() and run.finished:
        return run
    config = parse({"out": str(out), "data": {"texts": TEXTS, "held_out": HELD_OUT}, **changes}, SFTConfig)
    return run_offline(config, build_sft, resume=(out / "events.jsonl").exists())


def row(name: str, run: OfflineRun) -> list[str]:
    first, last = run.evaluations[0], run.evaluations[-1]
    best = min(run.evaluations, key=lambda e: e.loss)
    seconds = sorted(step.seconds or 0.0 for step in run.steps)
    return [
        name,
        f"{first.loss:.3f} ± {first.loss_error:.3f}",
        f"{last.loss:.3f} ± {last.loss_error:.3f}",
        f"{best.loss:.3f} after {best.step}",
        f"{last.kl_text:.4f} ± {last.kl_text_error:.4f}",
        f"{seconds[len(seconds) // 2]:.2f} s",
        f"{run.steps[-1].peak_memory_gb:.2f} GB",
    ]


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    rows = []
    for name, changes in RUNS.items():
        print(name, file=sys.stderr)
        rows.append(row(name, finished(name, changes)))
    print(INTRODUCTION.format(machine=machine()))
    print(table(["", "loss before", "after", "lowest", "KL after", "a step", "peak"], rows))


if __name__ == "__main__":
    main()
