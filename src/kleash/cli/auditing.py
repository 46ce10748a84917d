"""How `kleash drift` goes about one or several tuned models: audits them, writes what came of it, says it."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path

import typer
from rich.console import Console

from kleash.drift import api, files, gates, several
from kleash.drift.hint import earlier
from kleash.drift.question import Question
from kleash.drift.ranks import ranked
from kleash.drift.records import Audit
from kleash.drift.standings import Ranking
from kleash.errors import RunError
from kleash.report.drift import ranking, terminal, words
from kleash.report.drift.show import Shown
from kleash.whole import write_whole

STOPPED = 130
Given = list[str] | None


def limits(max_kl: Given, max_p99: Given, min_top1: Given) -> dict[str, dict[str, float]]:
    """The gates with a number, as `Gates` has them."""
    given = {"max_kl": max_kl, "max_p99": max_p99, "min_top1": min_top1}
    return {name: gates.parse("--" + name.replace("_", "-"), said or []) for name, said in given.items()}


def run(question: Question, tuned: Sequence[str], *, out: Path, curve: bool, as_json: bool) -> None:
    """Exits with the worst code of all audits; 130 where Ctrl-C ended them early, 2 where an error did."""
    console = Console(soft_wrap=True, highlight=False)
    question = replace(question, base=several.chosen(question.base))
    names = [several.chosen(name) for name in tuned]
    places = [out] if len(names) == 1 else [out / folder for folder in several.folders(names)]
    check_places(out, places, curve=curve)
    audits: list[Audit] = []
    hint = along(question, tuned[0], out, console) if curve else None
    for name, place in zip(names, places, strict=True):
        found = audited(replace(question, tuned=name))
        wrote = files.write_files(found, place)
        files.tell_ci(found)
        audits.append(found)
        if not as_json:
            console.print(terminal.block(found, wrote, hint or try_instead(found)))
        if found.partial:
            break
    order = ranked(audits, command=question.command) if len(names) > 1 else None
    if order is not None:
        told(order, out / "ranking", console, as_json)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in audits] if len(names) > 1 else asdict(audits[0])))
    if audits[-1].failed:
        raise RunError(audits[-1].partial)
    if audits[-1].partial:
        raise typer.Exit(STOPPED)
    unknown = [gate.text for one in audits for gate in one.gates if gate.passed is None]
    failed = [gate.text for one in audits for gate in one.gates if gate.passed is False]
    if unknown:
        raise RunError(f"not measured, so not passed: {'; '.join(unknown + failed)}")
    if failed:
        typer.echo(f"kleash: not passed: {'; '.join(failed)}", err=True)
        raise typer.Exit(1)


def check_places(out: Path, places: Sequence[Path], *, curve: bool) -> None:
    """That all can be written before minutes are spent on measuring it."""
    for place in places:
        files.check_place(place)
    tables = [name for name, asked in (("ranking", len(places) > 1), ("curve", curve)) if asked]
    files.check_place(out, [name + ending for name in tables for ending in (".html", ".json")])


def audited(question: Question) -> Audit:
    """One audit, with its progress on standard error."""
    with Shown(Console(stderr=True)) as show, redirect_stdout(sys.stderr):  # what a score prints is no answer
        return api.audit(question, show)


def along(question: Question, run: str, out: Path, console: Console) -> str | None:
    """The curve of a run: all its checkpoints by KL and score alone. Returns which of them is worth a try."""
    audits = []
    for name in several.course(run):
        audits.append(audited(several.along(replace(question, tuned=name))))
        if audits[-1].partial:
            break
    found = ranked(audits, command=question.command, curve=True)
    told(found, out / "curve", console, as_json=False)
    if audits[-1].failed:
        raise RunError(audits[-1].partial)
    return several.nearer(found)


def told(found: Ranking, place: Path, console: Console, as_json: bool) -> None:
    """Writes a ranking as page and JSON, and prints its table."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        written = write_whole(place.with_suffix(".json"), json.dumps(asdict(found)) + "\n")
    except OSError as error:
        raise RunError(f"cannot write to {place.parent}: {error.strerror or error}") from error
    wrote = [ranking.write_ranking(found, place.with_suffix(".html")), written]
    if not as_json:
        console.print(ranking.block(found, wrote))


def try_instead(found: Audit) -> str | None:
    """An earlier checkpoint of the same run, where the verdict is not a good one."""
    if words.TONES[found.judgement.verdict] == "good":
        return None
    nearer = earlier(found.tuned.name)
    return None if nearer is None else nearer.text
