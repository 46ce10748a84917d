"""`kleash demo`: the embedded tiny model trained without a leash, with one, and holding a KL target."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kleash.characters import printable
from kleash.demo.grammar import PROMPTS, fluency
from kleash.demo.side_by_side import Planned, train_all
from kleash.errors import UsageError
from kleash.records import Step
from kleash.report import compare
from kleash.report.log import Log, last_part, load
from kleash.training.progress import plain_line, shorten
from kleash.training.run import Run

#: Label → [kl], all in which the runs differ; and the two more of `--all`.
LEASHES: dict[str, dict[str, Any]] = {
    "beta 0": {"beta": 0.0},
    "beta 0.05": {"beta": 0.05},
    "target 4": {"target": "4 nats/sequence"},
}
MORE: dict[str, dict[str, Any]] = {"beta 0.01": {"beta": 0.01}, "beta 0.5": {"beta": 0.5}}
#: The run that the demo is about: whose model it recommends.
HELD = "target 4"
BASE = "base model"
#: What this file marks a directory with, so that a second demo may replace the first and nothing else.
MARK = "demo.json"
PROMPTS_FILE, PAGE = "prompts.txt", "compare.html"
LINES_A_RUN = 10
FLUENCY_POINTS = 20
SAMPLES_SHOWN = 3
HEADER = """\
# A run of `kleash demo`. With your own model, prompts and reward, change out, [model] policy, [data] prompts and
# [[rewards]] use ("./my_reward.py:score"), and leave out learning_rate: it is for this tiny model.

"""


def run_demo(out: Path, *, everything: bool, steps: int, seed: int, quiet: bool) -> dict[str, Any]:
    """Trains the runs side by side on the machine's cores, compares them, and says where everything is.

    Args:
        out: directory of all runs; an earlier demo in it is replaced.
        everything: two more strengths of the penalty.
        steps: of each run.
        seed: of each run.
        quiet: print nothing.

    Returns:
        The table's rows, and the paths of the report and of each run, as plain values.

    Raises:
        UsageError: `out` holds something that is not a demo or cannot be written, or a number cannot be meant.
        RunError: a run failed.
    """
    if steps < 1 or not 0 <= seed < 2**63:  # before an earlier demo is taken away
        raise UsageError(f"--steps {steps} --seed {seed}: steps must be at least 1, the seed at least 0 and below 2^63")
    console = Console(quiet=quiet, highlight=False)
    chosen = LEASHES | (MORE if everything else {})
    make_room(out)
    runs = plan(out, chosen, steps=steps, seed=seed)
    at_once = min(os.cpu_count() or 1, len(runs))
    tell(console, f"{len(runs)} runs of {steps} steps that differ in [kl] alone, {at_once} at a time:")
    width = max(len(run.label) for run in runs)
    every = max(1, steps // LINES_A_RUN)

    def heard(run: Planned, step: Step) -> None:
        if step.step % every == 0:
            tell(console, f"{run.label:<{width}}  {plain_line(step, steps)}")

    train_all(runs, heard, at_once=at_once, header=HEADER)
    logs = {run.label: load(run.path) for run in runs}
    rows = rows_of(runs, logs)
    curves = {"Fluency (the grammar’s)": {label: _fluency_curve(log) for label, log in logs.items()}}
    page = compare.compare(
        {run.label: run.path for run in runs}, out / PAGE, rows=rows, curves=curves, title="The leash, seen"
    )
    told = {
        "rows": [asdict(row) for row in rows],
        "report": str(page),
        "runs": {run.label: str(run.path) for run in runs},
    }
    (out / MARK).write_text(json.dumps(told, indent=1), encoding="utf-8")
    tell(console, "")
    console.print(compare.table(rows))
    show_samples(console, logs)
    _say_where(console, {run.label: run for run in runs}, page)
    return told


def make_room(out: Path) -> None:
    """Makes `out` ready for a demo: takes away, by name, what an earlier one made there; anything else stays.

    Raises:
        UsageError: `out` is not empty and no demo made it.
    """
    runs = [run.path.name for run in plan(out, LEASHES | MORE, steps=1, seed=0)]
    claim(out, MARK, [*runs, PAGE])
    write_prompts(out)


def claim(out: Path, mark: str, made: Sequence[str]) -> None:
    """Marks `out` as a demo's own, and takes away what an earlier one made there: `made`, with what runs leave beside.

    Raises:
        UsageError: `out` is not empty and has no such mark, or cannot be written.
    """
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / mark).exists())):
        raise UsageError(f"{out} holds something that is not a demo; choose another place with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / mark).write_text("{}", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}; choose another place with --out") from None
    for name in made:
        for path in (out / name, out / f"{name}.toml", out / f"{name}.txt"):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)


def write_prompts(out: Path) -> Path:
    """The prompts that all runs share, one a line."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / PROMPTS_FILE
    path.write_text("".join(f"{prompt}\n" for prompt in PROMPTS), encoding="utf-8")
    return path


def plan(out: Path, leashes: Mapping[str, Mapping[str, Any]], *, steps: int, seed: int) -> list[Planned]:
    """The runs, below `out` and differing in [kl] alone."""
    shared: dict[str, Any] = {
        "model": {"policy": "kleash:tiny", "device": "cpu"},
        "data": {"prompts": str(out / PROMPTS_FILE)},
        "rewards": [{"use": "vader"}],
        "train": {
            "steps": steps,
            "prompts_per_step": 8,
            "max_new_tokens": 32,
            "learning_rate": 1e-3,
            "checkpoint_every": steps,
            "seed": seed,
        },
    }
    return [
        Planned(label=label, config={"out": str(out / label.replace(" ", "-")), **shared, "kl": dict(leash)})
        for label, leash in leashes.items()
    ]


def rows_of(runs: Sequence[Planned], logs: Mapping[str, Log]) -> list[compare.Row]:
    """A row a run, its last tenth of steps; then the model they all started from: step 0 of the first."""
    rows = []
    for run in runs:
        log = logs[run.label]
        last = {step.step for step in last_part(log.steps, compare.ENDS)}
        rows.append(compare.row(run.label, run.path, fluency=fluency(texts(log, last))))
    first = logs[runs[0].label]
    start = first.steps[0]
    base = compare.Row(
        run=BASE,
        reward=start.score,
        kl=compare.sequence_kl(start),
        fluency=fluency(texts(first, {start.step})),
        distinct_2=start.distinct_2,
        seq_rep_4=start.seq_rep_4,
        bits_per_byte=start.bits_per_byte,
    )
    return [*rows, base]


def texts(log: Log, steps: set[int]) -> list[str]:
    """Prompt and completion together, as the grammar judges them."""
    return [f"{sample.prompt}{sample.completion}" for sample in log.samples if sample.step in steps]


def _fluency_curve(log: Log) -> dict[int, float | None]:
    every = max(1, len(log.steps) // FLUENCY_POINTS)
    return {step.step: fluency(texts(log, {step.step})) for step in log.steps[::every]}


def show_samples(console: Console, logs: Mapping[str, Log]) -> None:
    """The same prompts at the end of each run, after the model they started from."""
    ends = {label: [s for s in log.samples if s.step == log.steps[-1].step] for label, log in logs.items()}
    shared = list(dict.fromkeys(str(sample.prompt) for sample in next(iter(ends.values()))))
    width = max(map(len, ends))
    tell(console, "\nThe same prompts at the end of each run, the first sample of each:")
    for prompt in shared[:SAMPLES_SHOWN]:
        tell(console, f"\n  {printable(prompt)} …", style="bold")
        for label, samples in ends.items():
            first = next((sample for sample in samples if sample.prompt == prompt), None)
            said = "–" if first is None else shorten(printable(first.completion), 150)
            tell(console, f"    {label:<{width}} {said}")


def _say_where(console: Console, runs: Mapping[str, Planned], page: Path) -> None:
    held = runs[HELD]
    best = held.path / "best"
    model = best if best.exists() else Run(held.path).checkpoints[-1].path
    tell(
        console,
        f"\nreport  {page}\n"
        f"model   {model}\n"
        f"logs    {held.path}/events.jsonl, samples.jsonl, report.html; the other runs are beside it\n\n"
        f"With your own model, prompts and reward: copy {held.toml}, change its paths, then\n"
        "  kleash train run.toml",
    )


def tell(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
