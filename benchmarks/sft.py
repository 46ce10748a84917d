"""What supervised fine-tuning does to two models: printed as docs/runs/sft.md.

    python -m benchmarks.sft > docs/runs/sft.md

Runs that are finished in runs/bench-sft are not done again.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.runs import machine, table

from kleash.runlog.offline import TextEvaluation
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import ADAPTER_RATE, build_sft
from kleash.training.offline.start import run_offline
from kleash.training.toml import parse

OUT = Path("runs/bench-sft")
TEXTS, HELD_OUT = "recipes/tiny_texts.jsonl", "recipes/tiny_texts_held_out.jsonl"
TRAIN = {"epochs": 3, "batch_size": 16, "checkpoint_every": 10}
TINY_RATE = 3e-4
RUNS: dict[str, dict[str, Any]] = {
    "tiny, all weights": {"model": {"policy": "kleash:tiny"}, "train": TRAIN | {"learning_rate": TINY_RATE}},
    "SmolLM2, LoRA r = 16": {"model": {"policy": "kleash:smollm2", "adapter": {"rank": 16}}, "train": TRAIN},
}

INTRODUCTION = """\
# Supervised fine-tuning, run

Made by `python -m benchmarks.sft > docs/runs/sft.md` (`make bench-sft`); finished runs are kept and not done again.

{machine}

160 praising notes of the tiny model's grammar (`recipes/tiny_texts.jsonl`: four words asked, the rest answered), 40
more held out; three epochs of batches of 16, {lora:g} as the learning rate of LoRA (the default), {tiny:g} for the tiny
model. Loss and *KL there* are per counted token of the held-out notes, ± a standard error by note; *KL on own words* is
that of what the model itself writes after their prompts, in nats per sequence, ± a standard error by prompt. Both KLs
are exact, of the model to the one it started as, and neither is charged for.
"""


def finished(name: str, changes: dict[str, Any]) -> OfflineRun:
    out = OUT / name.lower().replace(",", "").replace("=", "").replace(" ", "-")
    run = OfflineRun(out)
    if (out / "events.jsonl").exists() and run.finished:
        return run
    config = parse({"out": str(out), "data": {"texts": TEXTS, "held_out": HELD_OUT}, **changes}, SFTConfig)
    return run_offline(config, build_sft, resume=(out / "events.jsonl").exists())


def rows(name: str, run: OfflineRun) -> list[list[str]]:
    """A line for each evaluation."""
    found = []
    for one in run.evaluations:
        assert isinstance(one, TextEvaluation) and one.kl_ref is not None
        found.append(
            [
                name,
                str(one.step),
                f"{one.loss:.3f} ± {one.loss_error:.3f}",
                f"{one.kl_text:.4f} ± {one.kl_text_error:.4f}",
                f"{one.kl_ref.value:.2f} ± {one.kl_ref.standard_error:.2f}",
                f"{one.length:.1f}",
            ]
        )
    return found


def main() -> None:
    found = []
    for name, changes in RUNS.items():
        print(name, file=sys.stderr)
        found += rows(name, finished(name, changes))
    print(INTRODUCTION.format(machine=machine(), lora=ADAPTER_RATE, tiny=TINY_RATE))
    heads = ["model", "after step", "held-out loss, nats/token", "KL there", "KL on own words", "tokens of these"]
    print(table(heads, found))


if __name__ == "__main__":
    main()
