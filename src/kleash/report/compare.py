"""Runs side by side: one table for the terminal, one page with their curves laid over each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from kleash.records import Step
from kleash.report import page, samples
from kleash.report.charts import Chart, Series
from kleash.report.figures import Group, Steps
from kleash.report.log import Extract, Log, last_part, load, mean

#: The share of steps, at the end, over which a row's figures are means.
ENDS = 1 / 10

#: label → step → value
Curve = Mapping[str, Mapping[int, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison; None is not measured and shows as "–"."""

    run: str
    reward: float | None = None
    gold: float | None = None
    kl: float | None = None
    fluency: float | None = None
    distinct_2: float | None = None
    seq_rep_4: float | None = None
    bits_per_byte: float | None = None


#: Field of `Row` → (heading, format).
COLUMNS = {
    "run": ("run", "s"),
    "reward": ("reward", ".3f"),
    "gold": ("gold", ".3f"),
    "kl": ("KL nats/sequence", ".2f"),
    "fluency": ("fluency", ".2f"),
    "distinct_2": ("distinct-2", ".2f"),
    "seq_rep_4": ("seq-rep-4", ".3f"),
    "bits_per_byte": ("bits per byte", ".2f"),
}


def row(label: str, run_dir: Path, *, fluency: float | None = None) -> Row:
    """A run's figures, each the mean over its last tenth of steps; `fluency` is judged from outside."""
    steps = last_part(load(run_dir).steps, ENDS)
    return Row(
        run=label,
        reward=mean(step.score for step in steps),
        kl=mean(sequence_kl(step) for step in steps),
        fluency=fluency,
        distinct_2=mean(step.distinct_2 for step in steps),
        seq_rep_4=mean(step.seq_rep_4 for step in steps),
        bits_per_byte=mean(step.bits_per_byte for step in steps),
    )


def with_gold(found: Row, gold: float | None) -> Row:
    """The same with the mean of a reward that the policy was not paid by."""
    return replace(found, gold=gold)


def sequence_kl(step: Step) -> float | None:
    return step.kl_ref.value if step.kl_ref else None


def cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Headings and texts, without the columns in which nothing was measured."""
    shown = [name for name in COLUMNS if any(getattr(each, name) is not None for each in rows)]
    texts = [
        ["–" if getattr(each, name) is None else format(getattr(each, name), COLUMNS[name][1]) for name in shown]
        for each in rows
    ]
    return [COLUMNS[name][0] for name in shown], texts


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for `rich`'s console."""
    headings, texts = cells(rows)
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for number, heading in enumerate(headings):
        drawn.add_column(heading, justify="right" if number else "left")
    for line in texts:
        drawn.add_row(*(Text(text) for text in line))
    return drawn


def compare(
    runs: Mapping[str, Path],
    out: Path,
    *,
    rows: Sequence[Row] | None = None,
    curves: Mapping[str, Curve] | None = None,
    first: Sequence[Group] = (),
    title: str = "Runs side by side",
    links: tuple[str, Mapping[str, str]] = ("", {}),
) -> Path:
    """Writes a page with the runs' table, curves and samples, and returns its path.

    Args:
        runs: label → run directory, in the order to show.
        out: the file to write, for example `compare.html`.
        rows: the table, where it should not be `row(label, run_dir)` of each run.
        curves: further charts by title, as label → step → value (for example {"Fluency": …}).
        first: sections of charts before the others.
        title: of the page.
        links: words, and after them further pages: what each is called → where it is, from this page.

    Raises:
        RunError: a run has no readable log, or the page cannot be written.
    """
    logs = {label: load(run_dir) for label, run_dir in runs.items()}
    rows = rows if rows is not None else [row(label, run_dir) for label, run_dir in runs.items()]
    headings, texts = cells(rows)
    return page.write(
        out,
        "compare.html.j2",
        title=title,
        verdict=verdict(rows),
        headings=headings,
        rows=texts,
        links=links,
        note="Means over the last tenth of the steps, where a figure was not given from outside.",
        groups=[*first, *groups(logs, curves or {})],
        samples=samples.across({label: log.samples for label, log in logs.items()}),
    )


def verdict(rows: Sequence[Row]) -> str:
    """Which run scored highest and which stayed closest, with their numbers."""
    scored = [each for each in rows if each.reward is not None and each.kl is not None]
    if len(scored) < 2:
        return ", ".join(each.run for each in rows)
    most, closest = max(scored, key=lambda r: r.reward or 0.0), min(scored, key=lambda r: r.kl or 0.0)
    words = f"The highest reward: {most.run}, {most.reward:.2f} at {most.kl:.1f} nats per sequence."
    if closest is most:
        return words + " It also stayed closest to the reference."
    return words + f" The closest to the reference: {closest.run}, {closest.reward:.2f} at {closest.kl:.1f} nats."


def groups(logs: Mapping[str, Log], curves: Mapping[str, Curve]) -> list[Group]:
    measured = [
        overlay("Score", "mean over samples", logs, lambda step: step.score),
        overlay("KL to the reference", "nats/sequence", logs, sequence_kl),
        *(given(name, logs, curve) for name, curve in curves.items()),
        overlay("Beta", "score per nat", logs, lambda step: step.beta),
        overlay("Distinct-2", "share", logs, lambda step: step.distinct_2),
        overlay("Length", "tokens/sample", logs, lambda step: step.length),
        overlay("Reference’s code length", "bits/byte of text", logs, lambda step: step.bits_per_byte),
    ]
    drawn = [chart for chart in measured if chart.drawn()]
    return [("The runs, laid over each other", "One colour a run, the same in every chart.", drawn)]


def overlay(title: str, unit: str, logs: Mapping[str, Log], extract: Extract) -> Chart:
    longest = max(len(log.steps) for log in logs.values())
    return given(title, logs, {label: curve(log, extract, longest) for label, log in logs.items()}, unit)


def curve(log: Log, extract: Extract, longest: int) -> dict[int, float | None]:
    steps = Steps.of(log.steps, longest)
    return {int(x): y for x, y in zip(steps.x, steps.column(extract), strict=True)}


def given(title: str, logs: Mapping[str, Log], values: Curve, unit: str = "") -> Chart:
    """Every run keeps its place, and so its colour, also in a chart where it has nothing."""
    x = sorted({step for by_step in values.values() for step in by_step})
    series = [Series(name=label, y=[values.get(label, {}).get(step) for step in x]) for label in logs]
    return Chart(title=title, unit=unit, x=[float(step) for step in x], series=series, zero=True)
