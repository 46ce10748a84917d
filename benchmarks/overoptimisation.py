"""Over-optimisation of reward models made of 500, 2,000 and 8,000 pairs: docs/runs/overoptimisation.md.

    python -m benchmarks.overoptimisation > docs/runs/overoptimisation.md

Reward models and runs that are finished in runs/bench-overoptimisation are not made again. Exits with 1 while one is
missing. `--only "pairs 500 seed 0"` does a part of it.
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.demo.gold import gold
from kleash.demo.grammar import PROMPTS
from kleash.demo.side_by_side import Planned
from kleash.report.log import Log, load
from kleash.report.trust import agreement
from kleash.training.offline.run import OfflineRun

OUT = Path("runs/bench-overoptimisation")
SIZES, SEEDS, HELD_OUT = (500, 2000, 8000), (0, 1, 2), 1000
STEPS, WINDOW = 100, 5
#: How sharply preferences follow the gold reward, from 0 to 1: P(a over b) = σ(SHARP · (gold a − gold b)).
SHARP = 8.0
RM = {"train.epochs": 3, "train.batch_size": 32, "train.learning_rate": 5e-4, "train.checkpoint_every": 15}
#: Edges of the KL bins, nats.
EDGES = (0.0, 2.0, 8.0, 32.0, math.inf)

INTRODUCTION = """\
# Reward models, over-optimised

Made by `python -m benchmarks.overoptimisation > docs/runs/overoptimisation.md`; what is finished is kept.

{machine}

The gold reward (`kleash.demo.gold`) is the share of sentences that parse under the grammar of the tiny model's
corpus, times (1 + VADER compound) / 2: from 0 to 1. Pairs are two samples of `kleash:tiny` at one prompt; which one is
chosen is drawn with probability σ({sharp:g} · difference of gold). A reward model starts from `kleash:tiny` with a
fresh head and is trained on 500, 2,000 or 8,000 pairs (3 epochs, batches of 32, 5e-4, the checkpoint with the lowest
loss on {held} held-out pairs). Then GRPO runs against it at beta = 0, so that the KL grows: {steps} steps of 8 prompts
× 8 completions, full fine-tuning at 1e-3; the gold reward is only watched (`weight = 0`). A seed decides which pairs,
their labels, the fresh head, the order of the pairs and the policy's samples. Gold, proxy and KL are means of {window}
steps in a row, but for gold at the start, which is the first step's.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A reward model and the run against it."""

    pairs: int
    seed: int

    @property
    def label(self) -> str:
        return f"pairs {self.pairs} seed {self.seed}"

    @property
    def reward_model(self) -> OfflineRun:
        return OfflineRun(OUT / f"rm-{self.pairs}-{self.seed}")

    @property
    def made(self) -> bool:
        return (self.reward_model.path / "events.jsonl").exists() and self.reward_model.finished

    def run(self) -> Planned:
        rewards: list[dict[str, Any]] = [
            {"use": f"model:{self.reward_model.path / 'best'}", "name": "proxy"},
            {"use": "kleash.demo.gold:gold", "name": "gold", "weight": 0.0},
        ]
        out = OUT / self.label.replace(" ", "-")
        return planned(out, self.label, steps=STEPS, seed=self.seed, rewards=rewards, kl={"beta": 0.0})


CELLS = [Cell(pairs=pairs, seed=seed) for seed in SEEDS for pairs in SIZES]


def drawn(count: int, seed: int) -> list[dict[str, Any]]:
    """Pairs of samples of the tiny model, their gold rewards beside them; from a file where they are there already."""
    file = OUT / f"samples-{count}-{seed}.jsonl"
    if not file.exists():
        from kleash.models.load import load as load_model
        from kleash.models.prompts import decode, encode
        from kleash.models.sampling import Sampling, sample
        from kleash.models.spec import ModelSpec

        loaded = load_model(ModelSpec(policy="kleash:tiny", device="cpu"))
        ids = encode(list(PROMPTS), loaded.tokenizer, context=loaded.context, max_new_tokens=32)
        rows: list[dict[str, Any]] = []
        for step in range(-(-count // len(PROMPTS))):
            rollout = sample(
                loaded.policy,
                ids,
                Sampling(max_new_tokens=32),
                loaded.ends,
                group_size=2,
                seed=seed,
                step=step,
                prompt_index=list(range(len(ids))),
            )
            texts = decode(rollout, loaded.tokenizer)
            golds = gold([prompt for prompt in PROMPTS for _ in range(2)], texts)
            rows += [
                {"prompt": prompt, "texts": texts[2 * i : 2 * i + 2], "gold": golds[2 * i : 2 * i + 2]}
                for i, prompt in enumerate(PROMPTS)
                if texts[2 * i].strip() != texts[2 * i + 1].strip() and all(t.strip() for t in texts[2 * i : 2 * i + 2])
            ]
        OUT.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][:count]


def labelled(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, str]]:
    """Preferences drawn from the gold rewards."""
    rng, found = random.Random(seed), []
    for row in rows:
        (a, b), (gold_a, gold_b) = row["texts"], row["gold"]
        first = rng.random() < 1 / (1 + math.exp(-SHARP * (gold_a - gold_b)))
        found.append({"prompt": row["prompt"], "chosen": a if first else b, "rejected": b if first else a})
    return found


def ceiling(rows: Sequence[dict[str, Any]]) -> float:
    """The accuracy of one who knows the gold reward: labels are drawn, and so not always its."""
    return statistics.fmean(1 / (1 + math.exp(-SHARP * abs(row["gold"][0] - row["gold"][1]))) for row in rows)


def make(cell: Cell) -> None:
    """The cell's reward model, unless it is there."""
    import kleash

    if cell.made:
        return
    pool = drawn(max(SIZES) + 600, seed=1)
    random.Random(cell.seed).shuffle(pool)
    kleash.reward_model(
        "kleash:tiny",
        labelled(pool[: cell.pairs], cell.seed),
        held_out=labelled(drawn(HELD_OUT, seed=2), seed=99),
        out=cell.reward_model.path,
        settings=RM | {"train.seed": cell.seed, "model.device": "cpu"},
        resume=(cell.reward_model.path / "events.jsonl").exists(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one cell; `peak` is the step around which the gold reward's mean over WINDOW steps is highest."""

    accuracy: float
    low: float
    high: float
    loss: float
    peak_kl: float
    gold_start: float
    gold_peak: float
    gold_end: float
    proxy_peak: float
    proxy_end: float
    kl_end: float


def found(cell: Cell, log: Log) -> Found:
    golds = smooth([step.scores["gold"] or 0.0 for step in log.steps])
    proxies = smooth([step.scores["proxy"] or 0.0 for step in log.steps])
    kls = smooth([step.kl_ref.value if step.kl_ref else 0.0 for step in log.steps])
    at = max(range(len(golds)), key=golds.__getitem__)
    chosen: Any = min(cell.reward_model.evaluations, key=lambda evaluation: evaluation.loss)
    return Found(
        accuracy=chosen.accuracy,
        low=chosen.accuracy_low,
        high=chosen.accuracy_high,
        loss=chosen.loss,
        peak_kl=kls[at],
        gold_start=log.steps[0].scores["gold"] or 0.0,
        gold_peak=golds[at],
        gold_end=golds[-1],
        proxy_peak=proxies[at],
        proxy_end=proxies[-1],
        kl_end=kls[-1],
    )


def smooth(values: Sequence[float]) -> list[float]:
    """Means of WINDOW consecutive steps."""
    return [statistics.fmean(values[i : i + WINDOW]) for i in range(len(values) - WINDOW + 1)]


def page() -> tuple[str, list[str]]:
    """The page of what is finished, and the names of what is missing."""
    text = INTRODUCTION.format(machine=machine(), sharp=SHARP, held=HELD_OUT, steps=STEPS, window=WINDOW)
    missing = [cell.label for cell in CELLS if not (cell.made and done(cell.run()))]
    there = [cell for cell in CELLS if cell.label not in missing]
    if missing:
        text += f"**Not done yet: {', '.join(missing)}.**\n\n"
    if not there:
        return text, missing
    logs = {cell: load(cell.run().path) for cell in there}
    of = {cell: found(cell, logs[cell]) for cell in there}
    best = ceiling(drawn(HELD_OUT, seed=2))
    heads = [
        "pairs",
        "seed",
        "held-out accuracy",
        "loss",
        "gold at the start",
        "gold at its peak",
        "√KL there",
        "KL there",
    ]
    heads += ["gold at the end", "proxy: peak → end", "KL at the end"]
    rows = [[str(c.pairs), str(c.seed), *numbers(of[c])] for c in sorted(there, key=lambda c: (c.pairs, c.seed))]
    text += f"A judge who knows the gold reward is right on {best:.3f} of the held-out labels: they were drawn.\n\n"
    text += f"{table(heads, rows)}\n\n{verdict(of)}\n\n{near_the_reference(logs)}\n"
    return text, missing


def numbers(f: Found) -> list[str]:
    return [
        f"{f.accuracy:.3f} ({f.low:.3f}–{f.high:.3f})",
        f"{f.loss:.3f}",
        f"{f.gold_start:.2f}",
        f"{f.gold_peak:.3f}",
        f"{math.sqrt(max(0.0, f.peak_kl)):.1f}",
        f"{f.peak_kl:.1f}",
        f"{f.gold_end:.3f}",
        f"{f.proxy_peak:.1f} → {f.proxy_end:.1f}",
        f"{f.kl_end:.0f}",
    ]


def verdict(of: dict[Cell, Found]) -> str:
    """Means over the seeds that are there, whichever way they fall."""
    said, sizes = [], {cell.pairs for cell in of}
    for size in SIZES:
        some = [f for cell, f in of.items() if cell.pairs == size]
        if some:
            peak = statistics.fmean(f.gold_peak for f in some)
            kls = ", ".join(f"{f.peak_kl:.1f}" for f in some)
            fell = sum(f.gold_end < f.gold_peak - 0.05 for f in some)
            said.append(
                f"{size} pairs: accuracy {statistics.fmean(f.accuracy for f in some):.3f}; the gold reward peaks at "
                f"{peak:.3f}, at {kls} nats, and has fallen by more than 0.05 at the end in {fell} of {len(some)} runs."
            )
    peaks = [statistics.fmean(f.peak_kl for cell, f in of.items() if cell.pairs == size) for size in sorted(sizes)]
    later = "rises" if peaks == sorted(peaks) else "does not rise"
    said.append(f"The mean KL of the peak {later} from size to size: {', '.join(f'{kl:.1f}' for kl in peaks)} nats.")
    return "Mean over seeds. " + " ".join(said)


def near_the_reference(logs: dict[Cell, Log]) -> str:
    """The agreement of the reward model with gold by the KL of the samples, over all seeds of a size."""
    rows = []
    for size in SIZES:
        seen = [one for cell, log in logs.items() if cell.pairs == size for one in agreement(log.samples, "gold")]
        cells = []
        for low, high in pairwise(EDGES):
            some = [one.value for one in seen if low <= one.kl < high]
            cells.append(f"{statistics.fmean(some):.3f} ({len(some)})" if some else "–")
        rows.append([str(size), *cells])
    names = [f"{low:g}–{high:g} nats" if high < math.inf else f"from {low:g} nats" for low, high in pairwise(EDGES)]
    return (
        "How often the reward model prefers, of two samples of one prompt in one step, the one that gold does, by the "
        "mean KL of the two (number of pairs; *Agreement with a watched reward* in each run's report is the same):\n\n"
        + table(["pairs", *names], rows)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train reward models of three sizes and run against them.")
    parser.add_argument("--at-once", type=int, default=1, help="policy runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="only what has this in its name")
    chosen = parser.parse_args(arguments)
    for cell in CELLS:
        if chosen.at_once and chosen.only in cell.label:
            make(cell)
            train_missing([cell.run()], chosen.at_once)
    text, missing = page()
    print(text, end="")
    for label in missing:
        print(f"not done: {label}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
