"""The last stage of `kleash demo --rlhf`: how far each policy moved from the reference, as by `kleash drift`."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from kleash.drift import api, files, several
from kleash.drift.question import Effort, Question, Scored
from kleash.drift.ranks import ranked
from kleash.drift.standings import Ranking
from kleash.errors import RunError
from kleash.report.drift import ranking, words

#: Few texts and no built-in task: seconds, and about 75 texts, which are enough for an interval.
EFFORT = Effort(tokens=8000, samples=64, builtin_tasks=False, cache=False)
SIDE_BY_SIDE = "side by side"
SCORE = "kleash.demo.gold:gold"


class Moved(NamedTuple):
    """What was found. pages: what each is, in the order to read → its file. lines: a run each, the nearest first."""

    ranking: Ranking
    pages: dict[str, Path]
    lines: list[str]


def command(reference: Path, runs: Mapping[str, Path], prompts: Path, out: Path) -> str:
    """What `moved` does, as a line to type."""
    options = ["--task", prompts, "--score", SCORE, "--tokens", EFFORT.tokens, "--samples", EFFORT.samples]
    parts = ["kleash", "drift", reference, *runs.values(), *options, "--no-tasks", "--device", "cpu", "--out", out]
    return shlex.join(map(str, parts))


def moved(reference: Path, runs: Mapping[str, Path], prompts: Path, out: Path) -> Moved:
    """Audits each run's model against the reference and ranks them; pages and records go to `out`.

    Args:
        reference: the model that all started from.
        runs: label → run directory.
        prompts: what they were trained on, judged by the gold reward.
        out: a directory, which is made.

    Raises:
        RunError: a model could not be measured, or not to the end, or a file not be written.
        KeyboardInterrupt: Ctrl-C; nothing half-measured is shown as if it were whole.
    """
    names = {label: several.chosen(str(run)) for label, run in runs.items()}
    places = dict(zip(names, several.folders(list(names.values())), strict=True))
    asked, audits = command(reference, runs, prompts, out), []
    for label, name in names.items():
        question = Question(
            base=str(reference),
            tuned=name,
            tasks=(Scored(file=str(prompts), score=SCORE),),
            device="cpu",
            effort=EFFORT,
            command=asked,
        )
        found = api.audit(question)
        if found.failed:
            raise RunError(found.partial)
        if found.partial:
            raise KeyboardInterrupt
        files.write_files(found, out / places[label])
        audits.append(found)
    pages = {name: f"{places[label]}/drift.html" for label, name in names.items()}
    order = ranked(audits, command=asked, pages=pages)
    (out / "ranking.json").write_text(json.dumps(asdict(order)) + "\n", encoding="utf-8")
    page = ranking.write_ranking(order, out / "ranking.html")
    every = {SIDE_BY_SIDE: page} | {label: out / pages[name] for label, name in names.items()}
    return Moved(order, every, lines(order, {name: label for label, name in names.items()}))


def lines(order: Ranking, labels: Mapping[str, str]) -> list[str]:
    """How far each went and what it gained by it. labels: a model's name → its run's."""
    width, found = max(map(len, labels.values())), []
    for row in order.rows:
        gain = "not measured" if row.score is None else words.change(row.score)
        went = f"KL off task, base||tuned, {words.with_bounds(row.forward, row.kind)} nats/token"
        found.append(f"{labels[row.name]:<{width}}  {went}  gold {gain}: {row.verdict}")
    return found
