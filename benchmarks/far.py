"""DAPO's claim, tried: far from the reference, is a leash in the way? Printed as docs/runs/far.md.

    python -m benchmarks.far > docs/runs/far.md

Runs that are finished in runs/bench-far are not done again. Exits with 1 while one is missing.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternating import SENTENCES
from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.demo.grammar import PROMPTS, fluency
from kleash.demo.run import texts
from kleash.demo.side_by_side import Planned
from kleash.report.log import Log, load, mean

OUT = Path("runs/bench-far")
STEPS, LAST, TOKENS = 100, 10, 64
#: Every so many prompts is held out.
HELD_OUT_EVERY = 4
CELLS: dict[str, dict[str, Any]] = {
    "DAPO, no KL": {"algorithm": {"kind": "dapo"}},
    "GRPO, no KL": {"kl": {"penalty": "none"}},
    "GRPO, 64 nats": {"kl": {"target": "64 nats/sequence"}},
    "GRPO, 16 nats": {"kl": {"target": "16 nats/sequence"}},
    "GRPO, 4 nats": {"kl": {"target": "4 nats/sequence"}},
}

INTRODUCTION = """\
# Far from the reference: DAPO's claim, tried

Made by `python -m benchmarks.far > docs/runs/far.md` (`make bench-far`); finished runs are kept and not done again.

{machine}

DAPO (arXiv 2503.14476, §2.3) leaves the KL out, for a long answer must be allowed to lie far from the model it began
as. Here is a task of that kind for the tiny model, whose own notes have one or two sentences: {sentences} sentences
whose mood turns each time, glad, sorry, glad, … The score (`benchmarks/alternating.py`) is the share of them that is
there, in order, by VADER's sign: it can be checked, and it does not ask for grammar. {steps} steps of 8 prompts × 8
completions of at most {tokens} tokens, full fine-tuning at 1e-3; each run differs in `[algorithm]` and `[kl]` alone.
DAPO is `kind = "dapo"` with nothing else.

*Held-out score*: of {held} prompts that were never trained on, after the last update, with its standard error.
*Fluency*: the share of sentences that parse under the grammar of the tiny model's corpus, over the last {last} steps;
neither the score nor the KL sees it. The other figures are of the last {last} steps too.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one run: the held-out score with its standard error, and what the last steps' samples are like."""

    held_out: float
    error: float
    kl: float
    fluency: float
    distinct_2: float
    length: float


def run(cell: str, seed: int) -> Planned:
    prompts, held_out = write_prompts()
    name = f"{cell} seed {seed}"
    made = planned(
        OUT / name.replace(" ", "-").replace(",", ""),
        name,
        steps=STEPS,
        seed=seed,
        data={"prompts": str(prompts), "held_out": str(held_out)},
        rewards=[{"use": "benchmarks.alternating:alternating"}],
        **CELLS[cell],
    )
    train = made.config["train"] | {"max_new_tokens": TOKENS, "evaluate_samples": 4}
    return Planned(label=made.label, config={**made.config, "train": train})


def write_prompts() -> tuple[Path, Path]:
    """The demo's prompts in two files; every fourth one is held out."""
    OUT.mkdir(parents=True, exist_ok=True)
    held_out = PROMPTS[::HELD_OUT_EVERY]
    files = OUT / "prompts.txt", OUT / "held_out.txt"
    for path, lines in zip(files, ([p for p in PROMPTS if p not in held_out], held_out), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return files


def found(log: Log) -> Found:
    numbers = set(range(STEPS - LAST + 1, STEPS + 1))
    steps, last = [step for step in log.steps if step.step in numbers], log.evaluations[-1]
    assert last.score is not None and last.score_error is not None, "the reward scores everything"
    return Found(
        held_out=last.score,
        error=last.score_error,
        kl=mean(step.kl_ref.value for step in steps if step.kl_ref) or 0.0,
        fluency=fluency(texts(log, numbers)),
        distinct_2=mean(step.distinct_2 for step in steps) or 0.0,
        length=mean(step.length for step in steps) or 0.0,
    )


def page(seeds: Sequence[int]) -> tuple[str, list[str]]:
    """The page of the finished runs, and the names of those that are missing."""
    text = INTRODUCTION.format(
        machine=machine(),
        sentences=SENTENCES,
        steps=STEPS,
        tokens=TOKENS,
        last=LAST,
        held=len(PROMPTS[::HELD_OUT_EVERY]),
    )
    logs = {(c, s): load(each.path) for c in CELLS for s in seeds if done(each := run(c, s))}
    missing = [run(c, s).label for c in CELLS for s in seeds if (c, s) not in logs]
    if missing:
        text += f"**Not done yet: {', '.join(missing)}.**\n\n"
    of = {cell: found(log) for cell, log in logs.items()}
    rows = [[cell, str(seed), *numbers(f)] for (cell, seed), f in of.items()]
    heads = ["run", "seed", "held-out score", "KL, nats/sequence", "fluency", "distinct-2", "tokens"]
    samples = "\n".join(f"- {cell}: {answer(log)}" for (cell, seed), log in logs.items() if seed == seeds[0])
    return f"{text}{table(heads, rows)}\n\nThe last step's first answer, seed {seeds[0]}:\n\n{samples}\n", missing


def numbers(f: Found) -> list[str]:
    return [
        f"{f.held_out:.2f} ± {f.error:.2f}",
        *(f"{x:.2f}" for x in (f.kl, f.fluency, f.distinct_2)),
        f"{f.length:.0f}",
    ]


def answer(log: Log) -> str:
    sample = next(sample for sample in log.samples if sample.step == STEPS)
    return f"`{sample.prompt}` …{sample.completion.strip()} ({sample.score:.2f})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train with and without a leash where the answer lies far away.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="train only runs whose name has this in it")
    chosen = parser.parse_args()
    seeds = range(chosen.seeds)
    runs = [run(cell, seed) for seed in seeds for cell in CELLS]
    if chosen.at_once:
        train_missing([each for each in runs if chosen.only in each.label], chosen.at_once)
    text, missing = page(seeds)
    print(text, end="")
    for label in missing:
        print(f"not done: {label}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
