"""Does the leash hold? Every placement of the KL under one setting of PI, on the tiny model: docs/runs/leash.md.

    python -m benchmarks.leash > docs/runs/leash.md

Runs that are finished in runs/bench-leash are not done again. Exits with 1 if a run misses a criterion.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.demo.side_by_side import Planned
from kleash.records import Step, Target
from kleash.report.log import mean
from kleash.training.run import Run

OUT = Path("runs/bench-leash")
STEPS, TARGET, RATE = 120, 4.0, 1e-3
#: At a third of the learning rate the KL takes about three times as long to reach its target for the first time.
SLOW_STEPS = 240
#: One setting for every row, the defaults written out.
CONTROLLER = {"kind": "pi", "kp": 1.0, "ki": 0.1, "error_clip": 0.3}
#: Steps of each phase of the schedule, and its targets.
PHASE, SCHEDULE = 120, (4.0, 2.0, 8.0)
PENALTIES: dict[str, dict[str, str]] = {
    "exact": {"kind": "exact"},
    "in_reward k1": {"kind": "in_reward", "estimator": "k1"},
    "in_loss k2": {"kind": "in_loss", "estimator": "k2"},
    "in_loss k3": {"kind": "in_loss", "estimator": "k3"},
}
ALGORITHMS = ("grpo", "rloo")

#: The criteria, over the last third of the steps a target was in force.
MEAN_OFF, EMA_OFF, EMA_SHARE = 0.10, 0.25, 0.90
EMA_SPAN = 10  # steps: each reading weighs 2/(span + 1)

INTRODUCTION = """\
# The leash holds

Made by `python -m benchmarks.leash > docs/runs/leash.md` (`make bench-leash`); finished runs are kept and not done
again. The command fails if a run misses a criterion.

{machine}

The tiny model, full fine-tuning, AdamW at 1e-3, 8 prompts × 8 completions of at most 32 tokens a step, reward VADER,
target 4 nats/sequence unless said otherwise. **One setting of the controller for all rows**: PI on log beta with
kp {kp:g}, ki {ki:g} and the error clipped to ±{error_clip:g} (the defaults), first beta 0.05. A clip of ±1 lets the
integral fall too far while the KL first rises (GRPO, exact, seed 0: a peak of 9.9 nats with ±1, of 5.1 with ±0.3). The
reading is the exact kl_ref of each step's 64 samples, whatever the penalty in the loss.

A run holds when, over the last third of the steps a target was in force, the mean KL is within 10 % of it, and at
least 90 % of the readings' exponential moving averages (span 10 steps) are within ±25 %.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the page."""

    section: str
    algorithm: str
    penalty: str = "exact"
    rate: float = RATE
    targets: tuple[float, ...] = (TARGET,)
    name: str | None = None  # in the table and the run's directory, where the algorithm's kind is not enough
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm
    model: Mapping[str, Any] = field(default_factory=dict)
    slow: bool = False  # its KL takes as long as at a third of the learning rate

    @property
    def called(self) -> str:
        return self.name or self.algorithm

    @property
    def steps(self) -> int:
        if len(self.targets) > 1:
            return PHASE * len(self.targets)
        return SLOW_STEPS if self.slow or self.rate < RATE else STEPS

    def run(self, seed: int) -> Planned:
        phases = [{"at": i * PHASE, "target": f"{t:g} nats/sequence"} for i, t in enumerate(self.targets)]
        target: Any = phases if len(phases) > 1 else phases[0]["target"]
        many = "" if len(phases) == 1 else " schedule"
        label = f"{self.called} {self.penalty} {self.rate:.2g}{many} seed {seed}"
        return planned(
            OUT / label.replace(" ", "-"),
            label,
            steps=self.steps,
            seed=seed,
            learning_rate=self.rate,
            model={"policy": "kleash:tiny", "device": "cpu", **self.model},
            algorithm={"kind": self.algorithm, **self.settings},
            kl={"target": target, "penalty": PENALTIES[self.penalty], "controller": CONTROLLER},
        )


def cases() -> list[Case]:
    return [
        *(Case(section="Every placement", algorithm=a, penalty=p) for a in ALGORITHMS for p in PENALTIES),
        *(
            Case(section="Another learning rate", algorithm=a, rate=rate)
            for a in ALGORITHMS
            for rate in (RATE / 3, RATE * 3)
        ),
        *(Case(section="A schedule of targets", algorithm=a, targets=SCHEDULE) for a in ALGORITHMS),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How a target was held over the last third of its steps. ema_share: of the EMA within EMA_OFF of the target."""

    target: float
    kl: float
    ema_share: float
    reward: float
    beta: float

    @property
    def good(self) -> bool:
        return abs(self.kl / self.target - 1) <= MEAN_OFF and self.ema_share >= EMA_SHARE


def held(steps: Sequence[Step]) -> Iterator[Held]:
    """One for each stretch of steps with one target, in order; the averages start anew with each."""
    measured = [step for step in steps if step.target is not None and step.kl_ref is not None]
    for text in dict.fromkeys(step.target for step in measured):
        stretch = [step for step in measured if step.target == text]
        target = Target.parse(text).value
        judged = stretch[-(len(stretch) // 3) :]
        smooth = ema([step.kl_ref.value for step in stretch if step.kl_ref])[-len(judged) :]
        yield Held(
            target=target,
            kl=mean(step.kl_ref.value for step in judged if step.kl_ref) or 0.0,
            ema_share=sum(abs(value / target - 1) <= EMA_OFF for value in smooth) / len(smooth),
            reward=mean(step.score for step in judged) or 0.0,
            beta=mean(step.beta for step in judged) or 0.0,
        )


def ema(values: Sequence[float]) -> list[float]:
    """Exponential moving average of span EMA_SPAN that starts at the first value."""
    smooth = [values[0]]
    for value in values[1:]:
        smooth.append(smooth[-1] + 2 / (EMA_SPAN + 1) * (value - smooth[-1]))
    return smooth


def page(cases: Sequence[Case], seeds: Sequence[int], notes: Mapping[str, str]) -> tuple[str, list[str]]:
    """The tables of the finished runs, a section for each note, and what failed.

    A run that is not done is a failure too, and the page says so.
    """
    text, failed = "", []
    missing = [run.label for case in cases for seed in seeds if not done(run := case.run(seed))]
    if missing:
        text += f"\n**{len(missing)} of {len(seeds) * len(cases)} runs are not done yet.**\n"
    for section, note in notes.items():
        rows = []
        for case, seed in ((case, seed) for case in cases for seed in seeds if case.section == section):
            run = case.run(seed)
            if run.label in missing:
                continue
            for found in held(Run(run.path).steps):
                rows.append(row(case, seed, found))
                failed += [] if found.good else [f"{run.label}: {found}"]
        good = sum(line[-1] == "yes" for line in rows)
        heads = ["algorithm", "penalty", "learning rate", "seed", "target", "mean KL", "EMA within 25 %"]
        grid = table([*heads, "reward", "beta", "holds"], rows)
        text += f"\n## {section}\n\n{note}{good} of {len(rows)} hold.\n\n{grid}\n"
    return text, [*failed, *(f"{label}: not done" for label in missing)]


NOTES = {
    "Every placement": f"{STEPS} steps. ",
    "Another learning rate": f"`exact`, ÷3 ({SLOW_STEPS} steps) and ×3 ({STEPS} steps). ",
    "A schedule of targets": f"`exact`, {' → '.join(f'{t:g}' for t in SCHEDULE)} nats/sequence, {PHASE} steps each. ",
}


def row(case: Case, seed: int, found: Held) -> list[str]:
    return [
        case.called,
        case.penalty,
        f"{case.rate:.2g}",
        str(seed),
        f"{found.target:g}",
        f"{found.kl:.2f} ({found.kl / found.target - 1:+.1%})",
        f"{found.ema_share:.0%}",
        f"{found.reward:.2f}",
        f"{found.beta:.3f}",
        "yes" if found.good else "**no**",
    ]


def bench(cases: Sequence[Case], introduction: str, notes: Mapping[str, str]) -> int:
    """Trains what is missing and prints the page: the command line of a bench of leashes."""
    parser = argparse.ArgumentParser(description="Train runs with a KL target and print how it was held.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="train only runs whose name has this in it")
    chosen = parser.parse_args()
    seeds = range(chosen.seeds)
    runs = [case.run(seed) for seed in seeds for case in cases]
    if chosen.at_once:
        train_missing([run for run in runs if chosen.only in run.label], chosen.at_once)
    text, failed = page(cases, seeds, notes)
    print(introduction.format(machine=machine(), **CONTROLLER) + text, end="")
    for what in failed:
        print(f"FAILED: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(bench(cases(), INTRODUCTION, NOTES))
