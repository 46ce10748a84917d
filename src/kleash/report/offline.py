"""The report of a run on rows that are there already, made from its log alone: `kleash sft`, `dpo`, `reward`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.records import Reading
from kleash.report import page
from kleash.report.charts import Chart, Series
from kleash.report.figures import MOST_POINTS, Group
from kleash.report.log import mean
from kleash.report.run import at, clock, fingerprint, kind, place, text
from kleash.report.toml import toml
from kleash.report.words import Tile
from kleash.runlog import Checkpoint, Notice, Rollback, RunEnd, RunStart, read
from kleash.runlog.schema import current, offline_evaluations, offline_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One chart: a line per field of the step records, or of the evaluations. A field may hold a reading of a KL."""

    title: str
    unit: str
    fields: Mapping[str, str]
    held_out: bool = False
    log: bool = False
    zero: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """What a verb's report shows: a heading, words and panels for each section, and the numbers to know first."""

    sections: Sequence[tuple[str, str, Sequence[Panel]]]
    tiles: Callable[[Sequence[Any], Sequence[Any]], list[Tile]]


def ends(records: Sequence[Any], name: str) -> tuple[float, float] | None:
    """A field's first and last value, where it was measured at least once."""
    known = [value for record in records if (value := _value(record, name)) is not None]
    return (known[0], known[-1]) if known else None


def tile(title: str, records: Sequence[Any], name: str, form: str = ".3f") -> Tile:
    """The last value, and what it was at first."""
    found = ends(records, name)
    if found is None:
        return Tile(title, "–", "not measured")
    return Tile(title, format(found[1], form), f"was {found[0]:{form}} at first")


UPDATES = (
    "Updates",
    "How the weights moved.",
    (
        Panel(title="Gradient norm", unit="before clipping", fields={"gradient norm": "grad_norm"}, log=True),
        Panel(title="Learning rate", unit="", fields={"learning rate": "learning_rate"}, zero=True),
        Panel(title="Seconds a step", unit="s", fields={"seconds": "seconds"}, zero=True),
    ),
)

TEXT = Story(
    sections=(
        (
            "The text",
            "How likely the policy finds the answers, before each update.",
            (
                Panel(title="Loss", unit="nats/token", fields={"rows of the step": "loss"}),
                Panel(title="Held-out loss", unit="nats/token", fields={"held-out rows": "loss"}, held_out=True),
                Panel(
                    title="KL to the reference on the held-out text",
                    unit="nats/token",
                    fields={"exact KL(policy‖reference)": "kl_text"},
                    held_out=True,
                    zero=True,
                    note="On given text, not on the policy's own words.",
                ),
                Panel(title="Entropy", unit="nats/token", fields={"entropy": "entropy"}, zero=True),
                Panel(title="Padding", unit="share of positions", fields={"padding": "padding"}, zero=True),
            ),
        ),
        UPDATES,
    ),
    tiles=lambda steps, evaluations: [
        tile("Loss, nats/token", steps, "loss"),
        tile("Held-out loss, nats/token", evaluations, "loss"),
        tile("KL on the held-out text, nats/token", evaluations, "kl_text", ".4f"),
    ],
)

PREFERENCES = Story(
    sections=(
        (
            "The KL on the policy's own words",
            "Measured on samples of the policy, on always the same prompts. The pairs' own text cannot show it.",
            (
                Panel(
                    title="KL(policy‖reference) on its own words",
                    unit="nats/sequence",
                    fields={"to the reference": "kl_ref", "to the first reference": "kl_origin"},
                    held_out=True,
                    zero=True,
                ),
                Panel(
                    title="KL per token",
                    unit="nats/token",
                    fields={"on its own words": "kl_ref_token"},
                    held_out=True,
                    zero=True,
                ),
                Panel(title="beta", unit="reward per nat", fields={"beta": "beta"}, held_out=True, log=True),
                Panel(title="Length of its own words", unit="tokens", fields={"length": "length"}, held_out=True),
            ),
        ),
        (
            "The preferences",
            "On the step's own pairs before each update, and on the pairs of every evaluation.",
            (
                Panel(title="Accuracy", unit="share of pairs", fields={"pairs of the step": "accuracy"}),
                Panel(
                    title="Accuracy at the evaluations",
                    unit="share of pairs",
                    fields={"pairs": "accuracy"},
                    held_out=True,
                ),
                Panel(title="Loss", unit="the loss's own", fields={"pairs of the step": "loss"}),
                Panel(
                    title="Implicit rewards",
                    unit="the loss's own scale",
                    fields={"chosen": "reward_chosen", "rejected": "reward_rejected", "margin": "reward_margin"},
                ),
            ),
        ),
        (
            "How likely the answers are",
            "A margin may grow while the chosen answers themselves become less likely: likelihood displacement.",
            (
                Panel(
                    title="Log-probability",
                    unit="nats/sequence",
                    fields={"chosen": "logprob_chosen", "rejected": "logprob_rejected"},
                ),
                Panel(
                    title="Log-ratio to the reference",
                    unit="nats/sequence",
                    fields={"chosen": "log_ratio_chosen", "rejected": "log_ratio_rejected"},
                ),
                Panel(
                    title="Change since the start, at the evaluations",
                    unit="nats/sequence",
                    fields={"chosen": "chosen_change", "margin": "margin_change"},
                    held_out=True,
                    zero=True,
                ),
                Panel(
                    title="KL on the pairs' own text",
                    unit="nats/token",
                    fields={"exact KL(policy‖reference)": "kl_text"},
                    zero=True,
                    note="On given text, not on the policy's own words.",
                ),
                Panel(title="Entropy", unit="nats/token", fields={"on the pairs": "entropy"}, zero=True),
            ),
        ),
        UPDATES,
    ),
    tiles=lambda steps, evaluations: [
        tile("KL on its own words, nats/sequence", evaluations, "kl_ref", ".2f"),
        tile("Accuracy", evaluations, "accuracy"),
        tile("Chosen answers since the start, nats/sequence", evaluations, "chosen_change", "+.2f"),
        tile("beta", evaluations, "beta", ".4g"),
    ],
)

STORIES: dict[str, Story] = {"sft": TEXT, "dpo": PREFERENCES}


def write_offline_report(run_dir: Path) -> Path:
    """Writes `report.html` into the run directory and returns its path.

    Raises:
        RunError: no readable log there, no step in it yet, or the page cannot be written.
    """
    events = current(read(run_dir / "events.jsonl"))
    steps, evaluations = offline_steps(events), offline_evaluations(events)
    start = next((event for event in events if isinstance(event, RunStart)), None)
    if start is None or not steps:
        raise RunError(f"{run_dir / 'events.jsonl'} has no step yet; there is nothing to report")
    story = STORIES[start.verb]
    end = next((event for event in reversed(events) if isinstance(event, RunEnd)), None)
    said = [event for event in events if isinstance(event, Notice | Rollback)]
    return page.write(
        run_dir / "report.html",
        "run.html.j2",
        title=run_dir.resolve().name,
        verdict=f"kleash {start.verb}: {len(steps)} updates.",
        ending=_ending(end, len(steps)),
        tiles=story.tiles(steps, evaluations),
        groups=_groups(story, steps, evaluations),
        samples={"rows": []},
        notices=[{"where": place(notice.step), "text": text(notice)} for notice in said],
        facts=_facts(start, steps, [event for event in events if isinstance(event, Checkpoint)]),
        config=toml(start.config),
        again=f"Save this as run.toml, then: kleash {start.verb} run.toml",
    )


def _ending(end: RunEnd | None, done: int) -> str:
    if end is None:
        return f"{done} updates; no end recorded: it is still running, or was killed."
    return f"Finished after {end.step} updates." if end.reason == "finished" else f"Ended: {end.reason}."


def _groups(story: Story, steps: Sequence[Any], evaluations: Sequence[Any]) -> list[Group]:
    groups: list[Group] = []
    for heading, intro, panels in story.sections:
        drawn = [_chart(panel, evaluations if panel.held_out else steps) for panel in panels]
        groups.append((heading, intro, [chart for chart in drawn if chart.drawn()]))
    return groups


def _chart(panel: Panel, records: Sequence[Any]) -> Chart:
    """The records in stretches of equal width, at most MOST_POINTS of them, each drawn as its mean."""
    width = math.ceil(len(records) / MOST_POINTS) or 1
    stretches = [records[i : i + width] for i in range(0, len(records), width)]
    series = [
        Series(name=label, y=[mean(_value(record, name) for record in stretch) for stretch in stretches])
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


def _value(record: Any, name: str) -> float | None:
    found = getattr(record, name)
    return found.value if isinstance(found, Reading) else found


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
