"""`kleash demo --rlhf`: the whole road on the tiny model: texts, preferences, a reward model, RL against it, the drift.

The preferences come from a hidden gold reward, so that one can see with one's own eyes where the learned reward goes on
rising and the true one does not: without a leash, and with one.
"""

import json
import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from kleash.demo.grammar import PROMPTS, corpus, fluency
from kleash.demo.moved import SIDE_BY_SIDE, Moved, command, moved
from kleash.demo.preferences import draw_pairs
from kleash.demo.run import claim, tell, texts
from kleash.demo.side_by_side import Planned, train_all
from kleash.errors import UsageError
from kleash.records import Step
from kleash.report import compare
from kleash.report.charts import Chart, Series
from kleash.report.figures import Group, Steps
from kleash.report.log import Extract, Log, last_part, load, mean
from kleash.training.progress import plain_line

#: What a demo may make in its directory, all of which a second one replaces.
STAGES = ("1-sft", "2-pairs.jsonl", "2-held-out.jsonl", "3-reward", "4-beta-0", "4-target-4", "5-drift")
TEXTS, HELD_TEXTS, PAIRS, HELD_PAIRS, PROMPTS_FILE = (
    "1-texts.jsonl",
    "1-held-out.jsonl",
    "2-pairs.jsonl",
    "2-held-out.jsonl",
    "4-prompts.txt",
)
MARK, PAGE = "rlhf.json", "rlhf.html"
NOTES, HELD_NOTES, WORDS_ASKED = 480, 80, 4
#: Openings for pairs: those that RL trains on, each this often, with other noise.
PAIRS_A_PROMPT, HELD_A_PROMPT = 8, 1
TOKENS, LINES_A_RUN = 32, 10
LEASHES: dict[str, dict[str, Any]] = {"beta 0": {"beta": 0.0}, "target 4": {"target": "4 nats/sequence"}}
PROXY, GOLD = "reward model", "gold"
WENT = "How far each moved from the reference, off the task too, by kleash drift:"


def run_rlhf(out: Path, *, steps: int, seed: int, quiet: bool) -> dict[str, Any]:
    """Walks the road and says where everything is.

    Args:
        out: directory of all stages; an earlier one of this demo is replaced.
        steps: of each RL run.
        seed: of every stage.
        quiet: print nothing.

    Returns:
        The table's rows, and the paths of the page and of each run, as plain values.

    Raises:
        UsageError: `out` holds something else or cannot be written, or a number cannot be meant.
        RunError: a stage failed.
    """
    if steps < 1 or not 0 <= seed < 2**63:
        raise UsageError(f"--steps {steps} --seed {seed}: steps must be at least 1, the seed at least 0 and below 2^63")
    console = Console(quiet=quiet, highlight=False)
    claim(out, MARK, [*STAGES, PAGE])
    write_texts(out, seed)
    _stage(console, "1  supervised fine-tuning on notes: the reference", sft(out, seed))
    numbers = [
        draw_pairs(out / "1-sft" / "best", PROMPTS * each, out / name, seed=seed + shift, max_new_tokens=TOKENS)
        for name, each, shift in ((PAIRS, PAIRS_A_PROMPT, 1), (HELD_PAIRS, HELD_A_PROMPT, 2))
    ]
    tell(console, f"2  preferences: {numbers[0]} pairs of its samples by the hidden gold reward, {numbers[1]} held out")
    _stage(console, "3  a reward model of the pairs", reward_model(out, seed))
    runs = [rl(out, label, leash, steps, seed) for label, leash in LEASHES.items()]
    tell(console, f"4  RL against the reward model, {steps} steps each:")
    _train(console, runs, steps)
    drift = _moved(console, out, {run.label: run.path for run in runs})
    return _tell_all(console, out, runs, drift)


def write_texts(out: Path, seed: int) -> None:
    """Notes of the grammar, cut after their first words, and the prompts that RL trains on."""
    notes = [note.split() for note in corpus(2 * (NOTES + HELD_NOTES), seed)]
    notes = [words for words in notes if len(words) > WORDS_ASKED + 2]
    random.Random(seed).shuffle(notes)
    rows = [
        {"prompt": " ".join(words[:WORDS_ASKED]), "completion": " " + " ".join(words[WORDS_ASKED:])} for words in notes
    ]
    for name, part in ((TEXTS, rows[:NOTES]), (HELD_TEXTS, rows[NOTES : NOTES + HELD_NOTES])):
        (out / name).write_text("".join(f"{json.dumps(one)}\n" for one in part), encoding="utf-8")
    (out / PROMPTS_FILE).write_text("".join(f"{prompt}\n" for prompt in PROMPTS), encoding="utf-8")


def sft(out: Path, seed: int) -> Planned:
    return Planned(
        verb="sft",
        label="sft",
        config={
            "out": str(out / "1-sft"),
            "model": {"policy": "kleash:tiny", "device": "cpu"},
            "data": {"texts": str(out / TEXTS), "held_out": str(out / HELD_TEXTS)},
            "train": {"epochs": 2, "batch_size": 16, "learning_rate": 3e-4, "checkpoint_every": 10, "seed": seed},
        },
    )


def reward_model(out: Path, seed: int) -> Planned:
    return Planned(
        verb="reward",
        label="reward model",
        config={
            "out": str(out / "3-reward"),
            "model": {"policy": str(out / "1-sft" / "best"), "device": "cpu"},
            "data": {"pairs": str(out / PAIRS), "held_out": str(out / HELD_PAIRS)},
            "train": {"epochs": 2, "batch_size": 16, "learning_rate": 3e-4, "checkpoint_every": 20, "seed": seed},
        },
    )


def rl(out: Path, label: str, leash: Mapping[str, Any], steps: int, seed: int) -> Planned:
    return Planned(
        label=label,
        config={
            "out": str(out / f"4-{label.replace(' ', '-')}"),
            "model": {"policy": str(out / "1-sft" / "best"), "device": "cpu"},
            "data": {"prompts": str(out / PROMPTS_FILE)},
            "rewards": [
                {"use": f"model:{out / '3-reward' / 'best'}", "name": PROXY},
                {"use": "kleash.demo.gold:gold", "name": GOLD, "weight": 0.0},
            ],
            "kl": dict(leash),
            "train": {
                "steps": steps,
                "prompts_per_step": 8,
                "max_new_tokens": TOKENS,
                "learning_rate": 1e-3,
                "checkpoint_every": steps,
                "seed": seed,
            },
        },
    )


def _stage(console: Console, words: str, run: Planned) -> None:
    tell(console, f"{words}\n     kleash {run.verb} {run.toml}")
    train_all([run], lambda *_: None, at_once=1)


def _train(console: Console, runs: Sequence[Planned], steps: int) -> None:
    every, width = max(1, steps // LINES_A_RUN), max(len(run.label) for run in runs)

    def heard(run: Planned, step: Step) -> None:
        if step.step % every == 0:
            true = step.scores.get(GOLD)
            tell(
                console,
                f"{run.label:<{width}}  {plain_line(step, steps)}  gold {'–' if true is None else f'{true:.3f}'}",
            )

    train_all(runs, heard, at_once=min(os.cpu_count() or 1, len(runs)))


def _moved(console: Console, out: Path, runs: Mapping[str, Path]) -> Moved:
    asked = (out / "1-sft" / "best", runs, out / PROMPTS_FILE, out / "5-drift")
    tell(console, f"5  how far each moved from the reference\n     {command(*asked)}")
    return moved(*asked)


def _tell_all(console: Console, out: Path, runs: Sequence[Planned], drift: Moved) -> dict[str, Any]:
    """Writes the page and the mark, and says what came of it and where it is."""
    logs = {run.label: load(run.path) for run in runs}
    rows = [row(run, logs[run.label]) for run in runs]
    page = compare.compare(
        {run.label: run.path for run in runs},
        out / PAGE,
        rows=rows,
        first=[over_optimisation(logs)],
        title="RLHF, end to end",
        links=(WENT, {name: where.relative_to(out).as_posix() for name, where in drift.pages.items()}),
    )
    told = {
        "rows": [asdict(each) for each in rows],
        "report": str(page),
        "runs": {run.label: str(run.path) for run in runs},
        "drift": {name: str(where) for name, where in drift.pages.items()},
    }
    (out / MARK).write_text(json.dumps(told, indent=1), encoding="utf-8")
    tell(console, "")
    console.print(compare.table(rows))
    tell(console, "\n" + "\n".join(drift.lines))
    tell(
        console,
        f"\nreport  {page}\ndrift   {drift.pages[SIDE_BY_SIDE]}\nmodel   {runs[-1].path}/best\n"
        f"stages  {out}/1-sft, 3-reward, … each with its .toml",
    )
    return told


def row(run: Planned, log: Log) -> compare.Row:
    last = last_part(log.steps, compare.ENDS)
    found = compare.row(run.label, run.path, fluency=fluency(texts(log, {step.step for step in last})))
    return compare.with_gold(found, mean(step.scores.get(GOLD) for step in last))


def over_optimisation(logs: Mapping[str, Log]) -> Group:
    """What the policy is paid for and what was meant, each against √KL, a line a run."""
    return (
        "Over-optimisation, seen",
        "The reward model is what the policy is paid by; gold is the hidden reward that its preferences came from. "
        "Where the first goes on rising and the second does not, the policy has left the text that the reward model "
        "knows.",
        [
            _against("The reward model’s score against √KL", logs, lambda step: step.scores.get(PROXY)),
            _against("The gold reward against √KL", logs, lambda step: step.scores.get(GOLD)),
        ],
    )


def _against(title: str, logs: Mapping[str, Log], value: Extract) -> Chart:
    series = []
    for label, log in logs.items():
        steps = Steps.of(log.steps)
        kls = steps.column(lambda step: step.kl_ref.value if step.kl_ref else None)
        roots = [math.sqrt(kl) if kl is not None and kl >= 0 else None for kl in kls]
        series.append(Series(name=label, y=steps.column(value), x=roots))
    longest = max(logs.values(), key=lambda log: len(log.steps))
    return Chart(
        title=title,
        unit="√ nats/sequence",
        x=Steps.of(longest.steps).x,
        series=series,
        path=True,
        x_label="√KL",
        note="One dot a step, joined in order.",
    )
