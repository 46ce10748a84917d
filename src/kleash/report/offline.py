"""The report of a run on rows that are there already, made from its log alone: `kleash sft`, `dpo`, `reward`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.report import page
from kleash.report.charts import Chart, Series
from kleash.report.figures import MOST_POINTS, Group
from kleash.report.log import mean
from kleash.report.run import at, clock, fingerprint, kind, place, text
from kleash.report.stories import STORIES, Panel, Story, value_of
from kleash.report.toml import toml
from kleash.report.watch import page as watched
from kleash.runlog import Checkpoint, Notice, Rollback, RunEnd, RunStart, read
from kleash.runlog.schema import Event, current, offline_evaluations, offline_steps

#: What a notebook shows of a report: charts by title.
VIEWED = ("KL(policy‖reference) on its own words", "Loss", "Held-out loss", "Accuracy")


def write_offline_report(run_dir: Path) -> Path:
    """Writes `report.html` into the run directory and returns its path.

    Raises:
        RunError: no readable log there, no step in it yet, or the page cannot be written.
    """
    log = _load(run_dir)
    said = [event for event in log.events if isinstance(event, Notice | Rollback)]
    return page.write(
        run_dir / "report.html",
        "run.html.j2",
        **page.scripts("hover.js.j2", "watch.js.j2"),
        **_head(run_dir, log),
        groups=_groups(log),
        notices=[{"where": place(notice.step), "text": text(notice)} for notice in said],
        facts=_facts(log.start, log.steps, [event for event in log.events if isinstance(event, Checkpoint)]),
        config=toml(log.start.config),
        again=f"Save this as run.toml, then: kleash {log.start.verb} run.toml",
    )


def view(run_dir: Path) -> str:
    """The run for a notebook: its first charts, and what the monitor says.

    Raises:
        RunError: no readable log there, or no step in it yet.
    """
    log = _load(run_dir)
    drawn = [chart for _, _, charts in _groups(log) for chart in charts if chart.title in VIEWED]
    return page.view("run_view.html.j2", **_head(run_dir, log), charts=drawn)


@dataclass(frozen=True, slots=True)
class _Log:
    events: Sequence[Event]
    start: RunStart
    steps: Sequence[Any]
    evaluations: Sequence[Any]

    @property
    def story(self) -> Story:
        return STORIES[self.start.verb]


def _load(run_dir: Path) -> _Log:
    events = current(read(run_dir / "events.jsonl"))
    start = next((event for event in events if isinstance(event, RunStart)), None)
    found = offline_steps(events)
    if start is None or not found:
        raise RunError(f"{run_dir / 'events.jsonl'} has no step yet; there is nothing to report")
    return _Log(events, start, found, offline_evaluations(events))


def _head(run_dir: Path, log: _Log) -> dict[str, Any]:
    end = next((event for event in reversed(log.events) if isinstance(event, RunEnd)), None)
    return {
        "watched": watched.section(run_dir),
        "title": run_dir.resolve().name,
        "verdict": f"kleash {log.start.verb}: {len(log.steps)} updates.",
        "ending": _ending(end, len(log.steps)),
        "tiles": log.story.tiles(log.steps, log.evaluations),
        "samples": {"rows": []},
    }


def _ending(end: RunEnd | None, done: int) -> str:
    if end is None:
        return f"{done} updates; no end recorded: it is still running, or was killed."
    return f"Finished after {end.step} updates." if end.reason == "finished" else f"Ended: {end.reason}."


def _groups(log: _Log) -> list[Group]:
    groups: list[Group] = []
    for heading, intro, panels in log.story.sections:
        drawn = [_chart(panel, log.evaluations if panel.held_out else log.steps) for panel in panels]
        drawn += [] if groups else log.story.more(log.evaluations)
        groups.append((heading, intro, [chart for chart in drawn if chart.drawn()]))
    return groups


def _chart(panel: Panel, records: Sequence[Any]) -> Chart:
    """The records in stretches of equal width, at most MOST_POINTS of them, each drawn as its mean."""
    width = math.ceil(len(records) / MOST_POINTS) or 1
    stretches = [records[i : i + width] for i in range(0, len(records), width)]
    series = [
        Series(name=label, y=[mean(value_of(record, name) for record in stretch) for stretch in stretches])
        for label, name in panel.fields.items()
    ]
    note = f"{panel.note} Each point is the mean of {width} steps.".strip() if width > 1 else panel.note
    return Chart(
        title=panel.title,
        unit=panel.unit,
        x=[float(stretch[0].step) for stretch in stretches],
        series=series,
        log=panel.log,
        zero=panel.zero,
        note=note,
    )


def _facts(start: RunStart, steps: Sequence[Any], checkpoints: Sequence[Checkpoint]) -> list[tuple[str, str]]:
    config = start.config
    found: list[tuple[str, Any]] = [
        ("Model", at(config, "model", "policy")),
        ("Reference", at(config, "model", "reference")),
        ("Loss", kind(at(config, "loss"))),
        ("Rows", at(config, "data", "texts") or at(config, "data", "pairs")),
        ("Held out", at(config, "data", "held_out")),
        ("Seed", at(config, "train", "seed")),
        ("Started", start.started),
        ("Time", clock(sum(step.seconds or 0.0 for step in steps))),
        ("Peak memory", f"{steps[-1].peak_memory_gb:.2f} GB" if steps[-1].peak_memory_gb is not None else None),
        ("Checkpoints", ", ".join(Path(checkpoint.path).name for checkpoint in checkpoints) or None),
        ("Versions", ", ".join(f"{name} {version}" for name, version in start.versions.items()) or None),
        *((f"Fingerprint, {name}", fingerprint(value)) for name, value in start.fingerprints.items()),
        ("Command", " ".join(start.argv) or None),
    ]
    return [(name, str(value)) for name, value in found if value is not None]
