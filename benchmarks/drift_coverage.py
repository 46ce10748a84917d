"""How often the intervals of an audit hold, on real per-token KLs of a hacked pair: docs/runs/drift-coverage.md.

    python -m benchmarks.drift_coverage > docs/runs/drift-coverage.md

A run at beta = 0 hacks its reward, its checkpoints are the tuned models, and the documents that both models read are a
population, from which audits are drawn. Exits with 1 if an interval of 300 documents holds in less than 93 % or more
than 97 %. `--draws 100` is a quick look. The run and the KLs are kept in runs/bench-drift-coverage.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.coverage_rivals import RIVALS
from benchmarks.runs import machine, planned, table
from transformers import AutoModelForCausalLM, AutoTokenizer

from kleash.demo.grammar import generate
from kleash.drift import statistics
from kleash.drift.builtin import DOMAINS, builtin_set
from kleash.drift.records import Interval
from kleash.models.catalog import resolve
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config

OUT = Path("runs/bench-drift-coverage")
STEPS, NOTES, PROMPT_TOKENS, CONTEXT = (20, 40), 3000, 100, 256
SIZES, DRAWS = (8, 25, 50, 100, 200, 300), 1000
SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)
NAMES = ("mean", "same top-1", "median", "90 %", "95 %", "99 %", "99.9 %")
HOLDS = (0.93, 0.97)

INTRODUCTION = """\
# How often the intervals of an audit hold

Made by `python -m benchmarks.drift_coverage > docs/runs/drift-coverage.md`.

{machine}

`kleash:tiny` is trained with GRPO against VADER at beta = 0 (8 prompts × 8 completions, full fine-tuning at 1e-3,
seed 0). Its checkpoints after {steps} steps are the tuned models: the first is beginning to hack, the second has
hacked. Base and tuned model read two sets of texts: {notes} notes of the grammar that the base was trained on (a mild
drift with a long tail), and the {builtin} reference answers of the built-in off-task set (text that a model of this
size has never seen; documents differ much). All documents of a set are the population, and its forward KL per token
is known. An audit draws so many documents from it, with replacement; {draws} audits a row. An interval holds if the
population's number is in it: 95 % should.

*iid error* is how much too small the error of independent tokens is: the clustered standard error over the iid one,
of the whole population. "–" stands where the data do not bound the number (fewer than half of the audits give an
interval).
"""


@dataclass(frozen=True, slots=True)
class Population:
    """KL per token of all documents of a set. domain: of each document, its number."""

    name: str
    kl: np.ndarray
    same: np.ndarray
    document: np.ndarray
    domain: np.ndarray

    def audits(self, size: int, draws: int) -> Iterator[np.ndarray]:
        """Numbers of the documents that each audit draws."""
        source = np.random.default_rng(size)
        for _ in range(draws):
            yield source.integers(self.document[-1] + 1, size=size)

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the chosen documents, and which of the chosen each belongs to."""
        ends = np.searchsorted(self.document, np.arange(self.document[-1] + 2))
        rows = [np.arange(ends[i], ends[i + 1]) for i in chosen]
        return np.concatenate(rows), np.repeat(np.arange(len(chosen)), [len(r) for r in rows])

    @property
    def truth(self) -> list[float]:
        return [self.kl.mean(), self.same.mean(), *np.quantile(self.kl, SHARES, method="inverted_cdf")]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("--draws", type=int, default=DRAWS)
    draws = asked.parse_args().draws
    people = populations()
    steps = " and ".join(map(str, STEPS))
    print(
        INTRODUCTION.format(
            machine=machine(), steps=steps, notes=f"{NOTES:,}", builtin=len(builtin_set()), draws=f"{draws:,}"
        )
    )
    statistics.LEAST = 5  # the tool gives no interval below 25 documents; this page says why
    held = {p.name: coverage(p, draws) for p in people}
    print("## What the tool prints\n")
    for p in people:
        print(f"### {p.name}\n\n{described(p)}\n")
        print(table(["documents", *NAMES], ([str(n), *map(percent, held[p.name][n])] for n in SIZES)) + "\n")
    print_rivals(people, draws)
    print_together(people, draws)
    bad = [
        f"{name}, {what}: {share:.1%}"
        for name, by_size in held.items()
        for what, share in zip(NAMES, by_size[SIZES[-1]], strict=True)
        if share is None or not HOLDS[0] <= share <= HOLDS[1]
    ]
    print("\n".join(bad), file=sys.stderr)
    sys.exit(bool(bad))


def coverage(people: Population, draws: int) -> dict[int, list[float | None]]:
    """Size → how often each of NAMES holds; None where most audits give no interval."""
    found = {}
    for size in SIZES:
        held, made = np.zeros(len(NAMES)), np.zeros(len(NAMES))
        for chosen in people.audits(size, draws):
            rows, document = people.rows(chosen)
            kl = people.kl[rows]
            intervals = [
                statistics.mean(kl, document, positive=True),
                statistics.proportion(people.same[rows], document),
                *statistics.quantiles(kl, document, SHARES),
            ]
            made += [interval.low is not None for interval in intervals]
            held += [holds(interval, true) for interval, true in zip(intervals, people.truth, strict=True)]
        found[size] = [float(h / m) if m >= draws / 2 else None for h, m in zip(held, made, strict=True)]
    return found


def holds(interval: Interval, true: float) -> bool:
    return interval.low is not None and interval.high is not None and interval.low <= true <= interval.high


def print_rivals(people: list[Population], draws: int) -> None:
    print("## Why these methods\n\nThe mean by other methods: of {} audits each, how many hold.\n".format(f"{draws:,}"))
    for p in people:
        lines = []
        for size in SIZES:
            held = dict.fromkeys(RIVALS, 0)
            for chosen in p.audits(size, draws):
                rows, document = p.rows(chosen)
                for name, rival in RIVALS.items():
                    low, high = rival(p.kl[rows], document)
                    held[name] += low <= p.kl.mean() <= high
            lines.append([str(size), *(percent(n / draws) for n in held.values())])
        print(f"{p.name}:\n\n{table(['documents', *RIVALS], lines)}\n")
    print(
        "iid: the mean ± 1.96 · s/√n, as tools print that take tokens for independent. CR1: ± Student's quantile\n"
        "times the clustered error. The others are bootstraps that draw documents. The tool uses the last.\n"
    )


def print_together(people: list[Population], draws: int) -> None:
    """How often all domains' intervals hold at once."""
    print("## Domains, all at once\n\nOf audits of the built-in set with 27 documents a domain, in how many do all of")
    print(f"the {len(DOMAINS)} intervals hold at once (each made for 1 − 0.05/{len(DOMAINS)})?\n")
    lines = []
    for p in people:
        if p.domain.max() == 0:
            continue
        truth = [p.kl[p.domain[p.document] == k].mean() for k in range(len(DOMAINS))]
        source, held = np.random.default_rng(0), 0
        for _ in range(draws):
            chosen = np.concatenate([source.choice(np.flatnonzero(p.domain == k), 27) for k in range(len(DOMAINS))])
            rows, document = p.rows(chosen)
            found = statistics.parts(p.kl[rows], document, document // 27, len(DOMAINS))
            held += all(i is not None and holds(i, true) for i, true in zip(found, truth, strict=True))
        lines.append([p.name, f"{draws:,}", percent(held / draws)])
    print(table(["population", "audits", "all hold"], lines))
    print(
        "\nEach bound is the wider of two: percentile-t's and Student's with the error CR3 and its degrees of freedom\n"
        "(Bell and McCaffrey 2002). 27 documents are few: the tool says so beside each of these intervals."
    )


def described(p: Population) -> str:
    whole = statistics.mean(p.kl, p.document)
    assert whole.standard_error is not None
    iid = p.kl.std(ddof=1) / np.sqrt(len(p.kl))
    quantiles = ", ".join(f"{name} {value:.3g}" for name, value in zip(NAMES[2:], p.truth[2:], strict=True))
    return (
        f"{p.document[-1] + 1:,} documents, {len(p.kl):,} tokens; mean {p.kl.mean():.3g} nats a token, {quantiles},\n"
        f"max {p.kl.max():.3g}; same top-1 {p.same.mean():.1%}; "
        f"iid error too small {whole.standard_error / iid:.1f} times."
    )


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def populations() -> list[Population]:
    """Of each checkpoint and each set of texts; measured once and kept."""
    base = str(resolve("kleash:tiny"))
    source = random.Random(1)
    sets = {
        "notes": ([("", generate(source)) for _ in range(NOTES)], np.zeros(NOTES, int)),
        "built-in set": (
            [("\n".join(content for _, content in row.messages), row.reference) for row in builtin_set()],
            np.array([DOMAINS.index(row.domain) for row in builtin_set()]),
        ),
    }
    found = []
    for step, checkpoint in zip(STEPS, checkpoints(), strict=True):
        for name, (rows, domain) in sets.items():
            kept = OUT / f"{step}-{name.replace(' ', '-')}.npz"
            if not kept.exists():
                kl, same, document = measured(base, str(checkpoint), rows)
                np.savez(kept, kl=kl, same=same, document=document)
            with np.load(kept) as arrays:
                found.append(Population(f"{step} steps, {name}", **arrays, domain=domain))
    return found


def checkpoints() -> list[Path]:
    run = planned(OUT, "hacked", steps=STEPS[-1], seed=0, kl={"beta": 0.0})
    config = run.config | {"out": str(OUT / "hacked"), "train": run.config["train"] | {"checkpoint_every": STEPS[0]}}
    if not (OUT / "hacked").exists():
        start(parse_config(config))
    return [saved.path for saved in Run(OUT / "hacked").checkpoints]


def measured(base: str, tuned: str, rows: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forward KL and whether the likeliest token is the same, per token of each text; in float64 from whole logits."""
    import torch

    tokenizer = AutoTokenizer.from_pretrained(base)
    sides = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in (base, tuned)]
    kls, sames = [], []
    for prompt, text in rows:
        before = tokenizer(prompt)["input_ids"][-PROMPT_TOKENS:]
        ids = (before + tokenizer(text, add_special_tokens=False)["input_ids"])[:CONTEXT]
        with torch.no_grad():
            p, q = (
                side(torch.tensor([ids])).logits[0, len(before) - 1 : -1].double().log_softmax(-1) for side in sides
            )
        kls.append((p.exp() * (p - q)).sum(-1).numpy())
        sames.append((p.argmax(-1) == q.argmax(-1)).numpy())
    return np.concatenate(kls), np.concatenate(sames), np.repeat(np.arange(len(kls)), [len(kl) for kl in kls])


if __name__ == "__main__":
    main()
