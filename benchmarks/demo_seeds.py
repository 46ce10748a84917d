"""The demo over ten seeds: is what it shows the rule or luck? docs/runs/demo.md.

    python -m benchmarks.demo_seeds > docs/runs/demo.md

Runs that are finished in runs/bench-demo are not done again. Exits with 1 if a claim fails.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.runs import done, machine, table, train_missing

from kleash.demo.grammar import fluency
from kleash.demo.run import BASE, HELD, LEASHES, plan, rows_of, texts, write_prompts
from kleash.demo.side_by_side import Planned
from kleash.report.compare import ENDS, Row
from kleash.report.log import load

OUT = Path("runs/bench-demo")
FREE = "beta 0"
STEPS, SEEDS = 100, 10

#: The claims: the unleashed run keeps at most, the held one at least, so much of the base's fluency; the held one
#: makes at least so much of the unleashed gain in reward; each in so many of ten seeds.
FREE_KEEPS, HELD_KEEPS, HELD_GAINS, SHARE = 0.5, 0.9, 0.5, 0.9

INTRODUCTION = """\
# The demo over ten seeds

Made by `python -m benchmarks.demo_seeds > docs/runs/demo.md` (`make bench-demo`); finished runs are kept and not done
again. The command fails if a claim does not hold.

{machine}
{missing}
Each seed is `kleash demo --seed N`: {steps} steps of GRPO, exact penalty, AdamW at 1e-3, 8 prompts × 8 completions of
at most 32 tokens, reward VADER; the three runs of a seed differ in [kl] alone. A run's figures are means over its last
tenth of steps ({last} samples). The base model's are those of step 0 of all seeds together ({base} samples): reward
{reward:.3f}, fluency {fluency:.3f}. Fluency is judged by the grammar of the tiny model's corpus, which knows nothing of
any model's likelihood.
"""


class Seed(NamedTuple):
    """A seed's rows by label, the base's among them, and the texts of its step 0, which are the base's."""

    number: int
    rows: Mapping[str, Row]
    base_texts: Sequence[str]


class Base(NamedTuple):
    """The model before training, over the step 0 of every seed."""

    reward: float
    fluency: float
    samples: int


class Verdict(NamedTuple):
    """Which of the three claims hold for a seed."""

    free_loses: bool
    held_keeps: bool
    held_gains: bool


def planned(seed: int, steps: int) -> list[Planned]:
    out = OUT / f"seed-{seed}"
    write_prompts(out)
    return plan(out, LEASHES, steps=steps, seed=seed)


def measured(number: int, runs: Sequence[Planned]) -> Seed:
    logs = {run.label: load(run.path) for run in runs}
    rows = {row.run: row for row in rows_of(runs, logs)}
    return Seed(number, rows, texts(next(iter(logs.values())), {0}))


def base_of(seeds: Sequence[Seed]) -> Base:
    every = [text for seed in seeds for text in seed.base_texts]
    return Base(fmean(seed.rows[BASE].reward or 0.0 for seed in seeds), fluency(every), len(every))


def judge(seed: Seed, base: Base) -> Verdict:
    return Verdict(
        free_loses=kept(seed.rows[FREE], base) <= FREE_KEEPS,
        held_keeps=kept(seed.rows[HELD], base) >= HELD_KEEPS,
        held_gains=gained(seed, base) >= HELD_GAINS,
    )


def kept(row: Row, base: Base) -> float:
    """The run's fluency as a share of the base's."""
    return (row.fluency or 0.0) / base.fluency


def gained(seed: Seed, base: Base) -> float:
    """The held run's gain in reward as a share of the unleashed run's."""
    return ((seed.rows[HELD].reward or 0.0) - base.reward) / ((seed.rows[FREE].reward or 0.0) - base.reward)


CLAIMS = (
    f"beta 0 keeps at most {FREE_KEEPS:.0%} of the base's fluency",
    f"{HELD} keeps at least {HELD_KEEPS:.0%} of it",
    f"{HELD} makes at least {HELD_GAINS:.0%} of the unleashed gain in reward",
)


def page(seeds: Sequence[Seed], *, steps: int, missing: int = 0) -> tuple[str, list[str]]:
    """The page, and the claims that failed; `missing`: seeds that are not done yet."""
    base = base_of(seeds)
    verdicts = [judge(seed, base) for seed in seeds]
    counts = [sum(column) for column in zip(*verdicts, strict=True)]
    counted = list(zip(CLAIMS, counts, strict=True))
    failed = [f"{claim}: {n} of {len(seeds)}" for claim, n in counted if n < SHARE * len(seeds)]
    last = max(1, round((steps + 1) * ENDS)) * 64
    text = INTRODUCTION.format(
        missing=f"\n**{missing} of {len(seeds) + missing} seeds are not done yet.**\n" if missing else "",
        machine=machine(), steps=steps, last=last, base=base.samples, reward=base.reward,
        fluency=base.fluency,
    )  # fmt: skip
    sections = {
        "The claims": table(["claim", "holds"], ([claim, f"{n} of {len(seeds)} seeds"] for claim, n in counted)),
        "By run: mean, smallest and largest over the seeds": means(seeds),
        "By seed": by_seed(seeds, base),
    }
    return text + "".join(f"\n## {title}\n\n{body}\n" for title, body in sections.items()), failed


FIGURES = {
    "reward": ".3f", "kl": ".2f", "fluency": ".3f", "distinct_2": ".3f", "seq_rep_4": ".3f", "bits_per_byte": ".2f",
}  # fmt: skip


def means(seeds: Sequence[Seed]) -> str:
    """Each figure of each run: mean over the seeds and, in brackets, the smallest and largest."""
    rows = []
    for label in [BASE, *LEASHES]:
        cells = []
        for name, form in FIGURES.items():
            values = [value for seed in seeds if (value := getattr(seed.rows[label], name)) is not None]
            cells.append(f"{fmean(values):{form}} ({min(values):{form}} … {max(values):{form}})" if values else "–")
        rows.append([label, *cells])
    return table(["run", "reward", "KL, nats/sequence", "fluency", "distinct-2", "seq-rep-4", "bits per byte"], rows)


def by_seed(seeds: Sequence[Seed], base: Base) -> str:
    heads = ["seed"]
    for label in LEASHES:
        heads += [f"{label}: reward", "KL", "fluency kept"]
    rows = []
    for seed in seeds:
        line = [str(seed.number)]
        for label in LEASHES:
            row = seed.rows[label]
            line += [f"{row.reward:.2f}", f"{row.kl:.1f}", f"{kept(row, base):.0%}"]
        rows.append([*line, f"{gained(seed, base):.0%}"])
    return table([*heads, f"{HELD}: share of the gain"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the demo over seeds and print whether its claims hold.")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    chosen = parser.parse_args()
    runs = {seed: planned(seed, chosen.steps) for seed in range(chosen.seeds)}
    if chosen.at_once:
        train_missing([run for several in runs.values() for run in several], chosen.at_once)
    seeds = [measured(seed, several) for seed, several in runs.items() if all(map(done, several))]
    if not seeds:
        print("FAILED: no seed is done", file=sys.stderr)
        return 1
    text, failed = page(seeds, steps=chosen.steps, missing=len(runs) - len(seeds))
    print(text, end="")
    if len(seeds) < len(runs):
        failed.append(f"only {len(seeds)} of {len(runs)} seeds are done")
    for what in failed:
        print(f"FAILED: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
