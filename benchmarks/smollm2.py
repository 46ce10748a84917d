"""A real model on a CPU: the recipes of SmolLM2-135M, and the one without its leash; writes docs/runs/smollm2.md.

python -m benchmarks.smollm2            (about an hour on one idle core; finished runs are not done again)
python -m benchmarks.smollm2 --table    (the page alone, from the logs there are)
python -m benchmarks.smollm2 --family   (PPO, GSPO and DAPO by LoRA instead: docs/runs/smollm2-family.md)
"""

import argparse
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.runs import processor, table

from kleash.records import Step
from kleash.report.log import Log, load, mean, prompt_text
from kleash.runlog import Sample
from kleash.training.config import Config, resolved, with_critic
from kleash.training.run import Run
from kleash.training.toml import dump_config, load_config

OUT, PAGE, FAMILY_PAGE = Path("runs/bench-smollm2"), Path("docs/runs/smollm2.md"), Path("docs/runs/smollm2-family.md")
#: Steps whose mean is "at first"; "at last" is the last third, where the leash is judged.
FIRST = 5
#: A leash has held when the mean KL of the last third is within this share of the target.
HELD = 0.10
#: A step's KL counts as near its target within this share of it.
NEAR = 0.25
#: Steps between two lines of the table of courses; openers shown, and samples of each.
EVERY, OPENERS, SHOWN = 8, 4, 3

INTRODUCTION = """\
# SmolLM2-135M on a CPU, {title}

Made by `python -m benchmarks.smollm2{flag}`; finished runs are kept and not done again. The runs are
`kleash train` of

{commands}

They differ in nothing that is not in these files: VADER's sentiment of the completion as the reward, {prompts} openers,
{per_step} prompts × {group} completions of at most {tokens} tokens a step, seed {seed}.

{machine}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: a recipe and what is changed in it."""

    name: str
    label: str
    recipe: str
    overrides: tuple[str, ...] = ()

    def config(self, out: Path) -> Config:
        return load_config(self.recipe, [*self.overrides, f"out={out / self.name}"])

    @property
    def command(self) -> str:
        return " ".join([self.recipe, *(f"'{override}'" for override in self.overrides)])


ADAPTED = "recipes/smollm2_sentiment.toml"
FULL = "recipes/smollm2_sentiment_full.toml"
CASES = (
    Case(name="lora", label="LoRA, leash", recipe=ADAPTED),
    Case(name="full-beta0", label="full, beta = 0", recipe=FULL, overrides=("kl={beta = 0}",)),
    Case(name="full", label="full, leash", recipe=FULL),
)
#: Where the reward is divided by its group's standard deviation the first beta is the default one.
BY_STD, FREE = "kl={target='4 nats/sequence'}", "kl={penalty='none'}"
PPO = "algorithm={kind='ppo', group_size=8, epochs=2}"
FAMILY = (
    Case(name="ppo", label="PPO, leash", recipe=ADAPTED, overrides=(PPO, "train.steps=60")),
    Case(name="gspo", label="GSPO, leash", recipe=ADAPTED, overrides=("algorithm={kind='gspo', group_size=8}", BY_STD)),
    Case(name="dapo", label="DAPO, no KL", recipe=ADAPTED, overrides=("algorithm={kind='dapo', group_size=8}", FREE)),
)


def done(case: Case, out: Path) -> bool:
    """Whether this very run is finished: the recipe may have changed since."""
    if not (out / case.name / "events.jsonl").exists() or not Run(out / case.name).finished:
        return False
    start, config = load(out / case.name).start, case.config(out)
    assert config.train.learning_rate is not None, "the recipes give theirs"
    asked = dump_config(resolved(with_critic(config), learning_rate=config.train.learning_rate))
    return start is not None and start.config == asked


def train_missing(out: Path, cases: Sequence[Case]) -> None:
    """One after the other; a checkpoint of all weights takes 1.6 GB and goes when its run is done."""
    from rich.console import Console

    from kleash.training.api import start
    from kleash.training.progress import Progress

    for case in cases:
        if not done(case, out):
            shutil.rmtree(out / case.name, ignore_errors=True)
            start(case.config(out), progress=Progress(Console(stderr=True)))
        shutil.rmtree(out / case.name / "checkpoints", ignore_errors=True)
        (out / case.name / "best").unlink(missing_ok=True)


def page(out: Path, cases: Sequence[Case]) -> str:
    """The whole page, from the logs of the finished runs."""
    logs = {case.label: load(out / case.name) for case in cases if done(case, out)}
    missing = [case.label for case in cases if case.label not in logs]
    config = cases[0].config(out)
    parts = [
        INTRODUCTION.format(
            title="PPO, GSPO and DAPO by LoRA" if cases is FAMILY else "with the leash and without",
            flag=" --family" if cases is FAMILY else "",
            commands="\n".join(_line(case, case.config(out)) for case in cases),
            prompts=len(Path(config.data.prompts).read_text(encoding="utf-8").splitlines()),
            per_step=config.train.prompts_per_step,
            group=config.algorithm.group_size,
            tokens=config.train.max_new_tokens,
            seed=config.train.seed,
            machine=machine(),
        )
    ]
    parts += [f"**Not done yet: {', '.join(missing)}.**\n"] if missing else []
    if logs:
        parts += [verdicts(logs), figures(logs), courses(logs), samples(logs)]
    return "\n".join(parts)


def _line(case: Case, config: Config) -> str:
    steps, rate = config.train.steps, config.train.learning_rate
    return f"- `{case.command}` ({case.label}; {steps} steps at learning rate {rate:g})"


def machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    return (
        f"One thread a run, on {os.cpu_count()} cores of {processor()}, shared with other work: the seconds are an "
        f"upper bound. float32; Python {platform.python_version()}, {packages}."
    )


Value = Callable[[Step], float | None]
KL = "KL(policy‖reference), nats/sequence"
ROWS: dict[str, tuple[Value, str]] = {
    "reward": (lambda s: s.score, ".2f"),
    "its standard deviation over samples": (lambda s: s.score_std, ".2f"),
    KL: (lambda s: None if s.kl_ref is None else s.kl_ref.value, ".2f"),
    "beta": (lambda s: s.beta, ".4f"),
    "entropy, nats/token": (lambda s: s.entropy, ".2f"),
    "distinct-2": (lambda s: s.distinct_2, ".2f"),
    "seq-rep-4": (lambda s: s.seq_rep_4, ".2f"),
    "bits per byte under the reference": (lambda s: s.bits_per_byte, ".2f"),
    "length, tokens": (lambda s: s.length, ".1f"),
    "gradient norm": (lambda s: s.grad_norm, ".2f"),
}


def figures(logs: dict[str, Log]) -> str:
    """Each figure at first → at last, a column a run; then how the target was held and what a step cost."""
    rows = [[name, *(_change(log, *of) for log in logs.values())] for name, of in ROWS.items()]
    rows.append(["KL held, of the target", *(_held(log) for log in logs.values())])
    for phase in ("total", "sample", "reference", "update"):
        rows.append([f"seconds a step, median: {phase}", *(f"{_median(log, phase):.1f}" for log in logs.values())])
    heads = [f"mean of the first {FIRST} steps → of the last third", *logs]
    return f"## Figures\n\n{table(heads, rows)}\n"


def verdicts(logs: dict[str, Log]) -> str:
    """A sentence a run: what the reward did, and whether the leash held."""
    lines = []
    for label, log in logs.items():
        reward, kl, pairs = (_change(log, *ROWS[name]) for name in ("reward", KL, "distinct-2"))
        line = f"- **{label}**: reward {reward}, KL {kl}, distinct-2 {pairs}."
        if log.target is not None:
            held = mean(log.kl_value(step) for step in last(log)) or 0.0
            off = held / log.target.value - 1
            good = abs(off) <= HELD
            line += f" The target of {log.target} {'held' if good else '**did not settle** in these steps'} ({off:+.0%}"
            line += f" over the last third; the highest step had {max(log.kl_value(s) or 0.0 for s in log.steps):.1f})."
        lines.append(line)
    return "## What came of it\n\n" + "\n".join(lines) + "\n"


def courses(logs: dict[str, Log]) -> str:
    """Reward, KL and beta of each run by step; the last line measures the finished policy."""
    total = max(len(log.steps) for log in logs.values())
    shown = sorted({*range(0, total, EVERY), total - 1})
    rows = [[str(step), *(_course(log, step) for log in logs.values())] for step in shown]
    return f"## Step by step\n\nReward / KL in nats per sequence / beta.\n\n{table(['step', *logs], rows)}\n"


def samples(logs: dict[str, Log]) -> str:
    """The same openers in every run, each at the last step that drew it, beside what the untrained model wrote."""
    text = (
        f"## Samples\n\nThe first {SHOWN} completions of {OPENERS} openers (by the alphabet, not chosen) with reward "
        "and KL: at the first step that drew the opener, and at each run's last. ⏎ is a line break.\n"
    )
    prompts = sorted({prompt_text(s.prompt) for log in logs.values() for s in log.samples})[:OPENERS]
    columns = {"at first": _drawn(next(iter(logs.values())), first=True)}
    columns |= {label: _drawn(log, first=False) for label, log in logs.items()}
    for prompt in prompts:
        found = {label: by_prompt.get(prompt, [])[:SHOWN] for label, by_prompt in columns.items()}
        heads = [f"{label} (step {part[0].step})" if part else label for label, part in found.items()]
        rows = [[_cell(part[i]) if i < len(part) else "–" for part in found.values()] for i in range(SHOWN)]
        text += f"\n**{_safe(prompt)} …**\n\n{table(heads, rows)}\n"
    return text


def _drawn(log: Log, *, first: bool) -> dict[str, list[Sample]]:
    """The samples of each prompt at the first or the last step that drew it."""
    found: dict[str, list[Sample]] = {}
    for sample in log.samples if first else reversed(log.samples):
        group = found.setdefault(prompt_text(sample.prompt), [sample])
        if sample.step == group[0].step and sample is not group[0]:
            group.append(sample)
    return found if first else {prompt: group[::-1] for prompt, group in found.items()}


def _cell(sample: Sample) -> str:
    kl = "–" if sample.kl_ref is None else f"{sample.kl_ref:.1f}"
    score = "–" if sample.score is None else f"{sample.score:.2f}"
    return f"{_safe(sample.completion)} ({score}; {kl})"


def _safe(text: str) -> str:
    """A model's text as text: no character of it means anything to Markdown or HTML, nor makes a link."""
    visible = "".join(c if c.isprintable() else "⏎" if c == "\n" else "·" for c in text)
    return re.sub(r"[^\w ,'?;!.⏎·-]|_|\.(?=\w)", lambda found: f"&#{ord(found[0])};", visible)


def last(log: Log) -> Sequence[Step]:
    """The last third of the training steps; the measurement after the last one is not among them."""
    trained = [step for step in log.steps if step.seconds]
    return trained[-(len(trained) // 3) :]


def _change(log: Log, value: Value, digits: str) -> str:
    begun, ended = (mean(value(step) for step in part) for part in (log.steps[:FIRST], last(log)))
    return " → ".join("–" if found is None else format(found, digits) for found in (begun, ended))


def _held(log: Log) -> str:
    values = [value for step in last(log) if (value := log.kl_value(step)) is not None]
    if log.target is None or not values:
        return "no target"
    held, target = sum(values) / len(values), log.target.value
    near = sum(abs(value / target - 1) <= NEAR for value in values)
    return f"{held:.2f} of {target:g} ({held / target - 1:+.0%}); {near} of {len(values)} steps within ±{NEAR:.0%}"


def _median(log: Log, phase: str) -> float:
    found = sorted(step.seconds[phase] for step in log.steps if phase in step.seconds)
    return found[len(found) // 2]


def _course(log: Log, number: int) -> str:
    step: Any = next((s for s in log.steps if s.step == number), None)
    if step is None or step.score is None:
        return "–"
    kl = log.kl_value(step)
    return f"{step.score:.2f} / {'–' if kl is None else f'{kl:.2f}'} / {step.beta:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the recipes of SmolLM2 and write docs/runs/smollm2.md.")
    parser.add_argument("--table", action="store_true", help="train nothing, write the page from the logs there are")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the runs")
    parser.add_argument("--family", action="store_true", help="the other algorithms instead")
    chosen = parser.parse_args()
    cases, written = (FAMILY, FAMILY_PAGE) if chosen.family else (CASES, PAGE)
    if not chosen.table:
        train_missing(chosen.out, cases)
    written.write_text(page(chosen.out, cases), encoding="utf-8")
    print(f"wrote {written}", file=sys.stderr)
    return 0 if all(done(case, chosen.out) for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
