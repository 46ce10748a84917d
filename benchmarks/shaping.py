"""Shaping × leash, two by two, on the tiny model with a reward that asks to be hacked: docs/runs/shaping.md.

    python -m benchmarks.shaping > docs/runs/shaping.md

Runs that are finished in runs/bench-shaping are not done again. Exits with 1 while one is missing.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.demo.grammar import fluency, parses
from kleash.demo.run import texts
from kleash.demo.side_by_side import Planned
from kleash.report.log import Log, load, mean
from kleash.rewards.vader import Vader

OUT = Path("runs/bench-shaping")
STEPS, LAST = 60, 10
SHAPES: dict[str, list[Any]] = {"none": [], "PAR": [{"kind": "par"}]}
LEASHES: dict[str, dict[str, Any]] = {
    "none": {"penalty": "none"},
    "4 nats": {"target": "4 nats/sequence"},
}
#: The leash without a shape, given a first beta that fits the raw reward's spread.
SCALED_BETA = 0.5
SCALED = "4 nats, first beta 0.5"

INTRODUCTION = """\
# Shaping and the leash

Made by `python -m benchmarks.shaping > docs/runs/shaping.md`; finished runs are kept and not done again.

{machine}

The tiny model, GRPO, full fine-tuning at 1e-3, {steps} steps of 8 prompts × 8 completions of at most 32 tokens, seed
{seed}. The reward (`benchmarks/praise.py`) is the sum of the VADER valences of a completion's words: unbounded, and
best met by a heap of praise. PAR is σ(s − s of one completion of the reference at the same prompt). The leash is a
target of 4 nats/sequence with the controller's defaults, whose first beta is 0.05. Its last row starts from {scaled:g}
instead, since raw scores spread several times as wide as shaped ones.

Figures of the last {last} steps. *Good* is what was meant: the share of samples in which every sentence parses under
the grammar of the tiny model's corpus and whose VADER compound is above 0. Neither the reward nor the KL sees it.
*Fluency* is the share of sentences that parse.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the four."""

    shape: str
    leash: str

    def run(self, seed: int) -> Planned:
        label = f"shape {self.shape} leash {self.leash} seed {seed}"
        return planned(
            OUT / label.replace(" ", "-"),
            label,
            steps=STEPS,
            seed=seed,
            rewards=[{"use": "benchmarks.praise:praise", "shape": SHAPES[self.shape]}],
            kl=(LEASHES | {SCALED: LEASHES["4 nats"] | {"beta": SCALED_BETA}})[self.leash],
        )


CELLS = [Cell(shape=shape, leash=leash) for leash in LEASHES for shape in SHAPES] + [Cell(shape="none", leash=SCALED)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of the steps looked at: reward as given, KL, and what was meant."""

    reward: float
    kl: float
    good: float
    fluency: float
    distinct_2: float
    length: float


def found(log: Log, numbers: set[int]) -> Found:
    """What the samples of these steps are worth."""
    steps = [step for step in log.steps if step.step in numbers]
    whole = texts(log, numbers)
    kind = Vader()([sample.completion for sample in log.samples if sample.step in numbers])
    return Found(
        reward=mean(step.score for step in steps) or 0.0,
        kl=mean(step.kl_ref.value for step in steps if step.kl_ref) or 0.0,
        good=sum(parses(text) and k > 0 for text, k in zip(whole, kind, strict=True)) / len(whole),
        fluency=fluency(whole),
        distinct_2=mean(step.distinct_2 for step in steps) or 0.0,
        length=mean(step.length for step in steps) or 0.0,
    )


def page(seed: int) -> tuple[str, list[str]]:
    """The page of the finished runs, and the names of those that are missing."""
    text = INTRODUCTION.format(machine=machine(), steps=STEPS, last=LAST, seed=seed, scaled=SCALED_BETA)
    missing = [run.label for cell in CELLS if not done(run := cell.run(seed))]
    if missing:
        return f"{text}**Not done yet: {', '.join(missing)}.**\n", missing
    logs = {(cell.shape, cell.leash): load(cell.run(seed).path) for cell in CELLS}
    last = set(range(STEPS - LAST + 1, STEPS + 1))
    of = {cell: found(log, last) for cell, log in logs.items()}
    rows = [[shape, leash, *numbers(f)] for (shape, leash), f in of.items()]
    rows.append(["–", "the model before", *numbers(found(logs["none", "none"], {0}))])
    heads = ["shape", "leash", "reward", "KL", "good", "fluency", "distinct-2", "tokens"]
    return f"{text}{table(heads, rows)}\n\n{verdict(of)}\n", []


def numbers(f: Found) -> list[str]:
    return [
        f"{f.reward:.2f}",
        f"{f.kl:.2f}",
        f"{f.good:.2f}",
        f"{f.fluency:.2f}",
        f"{f.distinct_2:.2f}",
        f"{f.length:.1f}",
    ]


def verdict(of: dict[tuple[str, str], Found]) -> str:
    """What the four numbers say, whichever way they fell."""
    cells = (("none", "none"), ("PAR", "none"), ("none", "4 nats"), ("PAR", "4 nats"), ("none", SCALED))
    raw, par, leashed, both, scaled = (of[cell] for cell in cells)
    said = (
        f"Good: {raw.good:.2f} with neither, {par.good:.2f} with PAR, {leashed.good:.2f} with the leash, "
        f"{both.good:.2f} with both. With a first beta that fits the raw reward, the leash alone comes to "
        f"{scaled.good:.2f} at {scaled.kl:.1f} nats."
    )
    if both.good > max(par.good, leashed.good, scaled.good):
        return f"**They work hand in hand.** {said}"
    return f"**Both together are not better than the best of the others, in this run.** {said}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train shaping × leash and print what came of it.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="train only runs whose name has this in it")
    chosen = parser.parse_args(arguments)
    runs = [cell.run(chosen.seed) for cell in CELLS]
    if chosen.at_once:
        train_missing([run for run in runs if chosen.only in run.label], chosen.at_once)
    text, missing = page(chosen.seed)
    print(text, end="")
    for label in missing:
        print(f"not done: {label}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
