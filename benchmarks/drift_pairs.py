"""Verdicts on further pairs, with the thresholds as they stand: writes docs/runs/drift-pairs.md.

python -m benchmarks.drift_pairs            (half an hour on one idle core; finished runs are not done again)
python -m benchmarks.drift_pairs --train    (the runs of the tiny model alone)

The checkpoints of SmolLM2 are those of benchmarks/drift_examples.py, which trains them.
"""

import argparse
import contextlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.drift_examples import BASE, file, write_tasks
from benchmarks.drift_examples import OUT as REAL
from benchmarks.runs import machine, planned, table
from rich.console import Console

from kleash.demo.grammar import fluency
from kleash.drift.api import audit
from kleash.drift.question import Effort, Question, Scored
from kleash.drift.records import Audit
from kleash.report.drift import words
from kleash.training.api import start
from kleash.training.offline.api import dpo, sft
from kleash.training.progress import Progress
from kleash.training.toml import parse_config

OUT, PAGE = Path("runs/bench-drift"), Path("docs/runs/drift-pairs.md")
TEXTS, PAIRS, PROMPTS = "recipes/tiny_texts.jsonl", "recipes/tiny_pairs.jsonl", "recipes/tiny_prompts.txt"
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A tuned model of kleash:tiny. kl: an online run by this [kl]; recipe: training on rows; else a name."""

    label: str
    name: str
    steps: int = 0
    kl: dict[str, Any] | None = field(default=None, hash=False)
    recipe: str | None = None

    @property
    def tuned(self) -> str:
        if self.kl is not None:
            return str(OUT / self.name / "checkpoints" / f"step-{self.steps:06d}")
        return str(OUT / self.name) if self.recipe else self.name


CASES = (
    Case(label="itself", name="kleash:tiny"),
    Case(label="itself in bfloat16", name="kleash:tiny@bfloat16"),
    Case(label="itself in 4 bits", name="kleash:tiny@4bit"),
    Case(label="GRPO, target 1 nat/sequence", name="target-1", steps=60, kl={"target": "1 nats/sequence"}),
    Case(label="GRPO, target 4 nats/sequence", name="target-4", steps=60, kl={"target": "4 nats/sequence"}),
    Case(label="GRPO, beta = 0, 20 steps", name="beta-0-20", steps=20, kl={"beta": 0.0}),
    Case(label="GRPO, beta = 0, 60 steps", name="beta-0-60", steps=60, kl={"beta": 0.0}),
    Case(label="SFT on praising notes", name="sft", recipe="sft"),
    Case(label="DPO, a rater who likes praise", name="dpo", recipe="dpo"),
)

#: Of the runs of benchmarks/drift_examples.py.
CHECKPOINTS = {
    "light, 36 steps": "light@step-36",
    "light, 48 steps": "light@step-48",
    "hacked, 36 steps": "hacked@step-36",
    "hacked, 48 steps": "hacked@step-48",
}


def train(case: Case) -> None:
    """The run of a case, if it has one that is not there yet."""
    path = OUT / case.name
    if case.kl is not None and not (path / "report.html").exists():
        config = {**planned(OUT, case.name, steps=case.steps, seed=SEED, kl=case.kl).config, "out": str(path)}
        start(parse_config(config), progress=Progress(Console(file=sys.stderr)))
    elif case.recipe and not path.is_dir():
        settings = {"train.epochs": 3, "train.batch_size": 16, "train.learning_rate": 1e-3, "train.seed": SEED}
        teach = {"sft": (sft, TEXTS), "dpo": (dpo, PAIRS)}[case.recipe]
        teach[0]("kleash:tiny", teach[1], out=OUT / f"{case.name}-run", settings=settings).model.save(path)


def audited(case: Case) -> Audit:
    """Praise is the task, the same of other openers its sibling, and whether the text parses is what could be lost."""
    prompts = Path(PROMPTS).read_text().splitlines()
    halves = {"praise": prompts[::2], "praise of others": prompts[1::2]}
    for name, lines in halves.items():
        (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")
    question = Question(
        base="kleash:tiny",
        tuned=case.tuned,
        tasks=(
            Scored(file=str(OUT / "praise.txt"), score="vader"),
            Scored(file=str(OUT / "praise of others.txt"), score="vader", role="sibling"),
            Scored(file=str(OUT / "praise.txt"), score=parses, role="sibling"),
        ),
        effort=Effort(tokens=8000, samples=0, max_new_tokens=32, builtin_tasks=False, yardsticks=False),
        seed=SEED,
    )
    return audit(question)


def parses(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """The share of each text's sentences that parse under the grammar of the tiny model."""
    return [fluency([prompt + text]) for prompt, text in zip(prompts, completions, strict=True)]


def real(step: str) -> Audit:
    """A checkpoint of SmolLM2's runs, on the tasks of its example."""
    question = Question(
        base=BASE,
        tuned=str(REAL / step),
        tasks=(
            Scored(file=str(file("cheerful")), score="vader"),
            Scored(file=str(file("told to be cheerful")), score="vader", role="sibling"),
        ),
        effort=Effort(tokens=8000, samples=0, max_new_tokens=24, builtin_tasks=False, yardsticks=False),
        seed=SEED,
    )
    return audit(question)


def row(label: str, found: Audit) -> list[str]:
    off = next(one for one in found.distributions if one.name == "off task")
    assert off.forward is not None and off.prediction is not None
    return [
        label,
        words.with_bounds(off.forward.mean),
        f"{off.prediction.base:.2f} → {off.prediction.tuned:.2f}",
        *(f"{score.base:.2f} → {score.tuned:.2f}, {score.outcome}" for score in found.scores),
        f"**{found.judgement.verdict}**: {found.judgement.because}",
    ]


def page(tiny: dict[str, Audit], checkpoints: dict[str, Audit]) -> str:
    heads = ["tuned model", "KL off task, nats/token", "texts predicted"]
    of_tiny = [*heads, "praise", "praise of other openers", "parses", "verdict"]
    of_real = [*heads, "cheerful", "told to be cheerful", "verdict"]
    return (
        INTRODUCTION.format(machine=machine())
        + table(of_tiny, [row(*one) for one in tiny.items()])
        + "\n\n## Along two runs of SmolLM2\n\n"
        + ALONG
        + table(of_real, [row(*one) for one in checkpoints.items()])
        + "\n"
    )


INTRODUCTION = """\
# Verdicts on further pairs

Made by `python -m benchmarks.drift_pairs` (`make bench-drift-pairs`); finished runs are not done again. The thresholds
of the verdict are those of `src/kleash/drift/thresholds.py`. All but the one on the off-task texts were frozen before
any of these, and before the four pairs of SmolLM2 in [drift.md](../drift.md#four-pairs), were measured; that one was
added after the four, and before these were judged by it.

{machine}

## The tiny model

The base is `kleash:tiny`. The task is VADER's sentiment on 32 openers; its siblings are the same on 32 other openers,
and the share of sentences that parse under the grammar that the model was trained on. Off task: 8,000 tokens of the
built-in set, which is nothing that this model has ever seen: a small change of it is a large KL there, and it predicts
those texts far worse than their letters' frequencies do (a score below 0), so that it has none of them to lose.

"""

ALONG = """\
Checkpoints before the last of the runs *light* and *hacked* of the four pairs. Texts predicted: 1 is word for word, 0
by letters' frequencies.

"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--train", action="store_true", help="the runs alone")
    arguments = asked.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    OUT.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stdout(sys.stderr):
        for case in CASES:
            train(case)
        audits = {} if arguments.train else {case.label: audited(case) for case in CASES}
        write_tasks()
        real_ones = {} if arguments.train else {label: real(step) for label, step in CHECKPOINTS.items()}
    if audits:
        PAGE.write_text(page(audits, real_ones), encoding="utf-8")


if __name__ == "__main__":
    main()
