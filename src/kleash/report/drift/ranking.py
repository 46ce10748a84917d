"""Several tuned models of one base: a table, and score against KL. The chart's corner top left is where to be."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from kleash.characters import printable
from kleash.drift.records import Interval
from kleash.drift.standings import Ranking, Standing
from kleash.report import page
from kleash.report.charts import Chart, Series
from kleash.report.drift import words
from kleash.report.drift.terminal import columns

TITLES = {"ranks": "Tuned models of one base, nearest first", "curve": "A run’s checkpoints"}


def block(ranking: Ranking, wrote: Sequence[Path] = ()) -> Text:
    """The table for a terminal, what is inside the noise beneath it."""
    return Text("\n").join([*lines(ranking), *([Text(f"wrote {'  '.join(map(str, wrote))}")] if wrote else [])])


def lines(ranking: Ranking) -> Iterator[Text]:
    if ranking.partial:
        yield Text(f"PARTIAL: {printable(ranking.partial)}", style="yellow")
    yield Text(f"{TITLES[ranking.kind]}; base {printable(ranking.base)}", style="bold")
    headings, rows = cells(ranking)
    yield from columns([headings, *([f" {printable(row[0])}", *map(printable, row[1:])] for row in rows)])
    for note in noise(ranking):
        yield Text(f" * {printable(note)}", style="yellow")
    yield Text(f"again: {printable(ranking.command)}", style="dim")


def cells(ranking: Ranking) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, without the columns in which nothing was measured."""
    curve = ranking.kind == "curve"
    task = ranking.task or "score"
    table = {
        "step" if curve else "model": [str(row.step) if curve else row.name for row in ranking.rows],
        "KL off task, base||tuned": [words.with_bounds(row.forward, row.kind) for row in ranking.rows],
        "more than the one before": [gap(row) for row in ranking.rows],
        task: [words.UNMEASURED if row.score is None else f"{row.score.tuned:.3f}" for row in ranking.rows],
        "change": ["" if row.score is None else words.change(row.score) for row in ranking.rows],
        "verdict": [row.verdict or "" for row in ranking.rows],
    }
    empty = {"", words.UNMEASURED}
    kept = {heading: column for heading, column in table.items() if set(column) - empty}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def gap(row: Standing) -> str:
    if row.gap is None:
        return ""
    return f"{words.nats(row.gap.value)} {words.bounds(row.gap)}"


def noise(ranking: Ranking) -> list[str]:
    """Neighbours whose order the data do not settle."""
    told = []
    for before, row in zip(ranking.rows, ranking.rows[1:], strict=False):
        if row.gap is not None and inside_noise(row.gap):
            told.append(f"{label(before)} and {label(row)} are inside each other's noise: their order may be chance")
    return told


def inside_noise(gap: Interval) -> bool:
    """Whether the difference may be 0; without an interval it may."""
    return gap.low is None or gap.high is None or gap.low <= 0 <= gap.high


def label(row: Standing) -> str:
    return row.name if row.step is None else f"step {row.step}"


def write_ranking(ranking: Ranking, path: Path) -> Path:
    """Writes the page and returns its path.

    Raises:
        RunError: it cannot be written.
    """
    headings, rows = cells(ranking)
    return page.write(
        path,
        "ranking.html.j2",
        title=TITLES[ranking.kind],
        base=ranking.base,
        answer=answer(ranking),
        headings=headings,
        rows=rows,
        notes=noise(ranking),
        charts=[chart for chart in (course(ranking), against(ranking)) if chart is not None],
        partial=ranking.partial,
        command=ranking.command,
        made=ranking.made,
    )


def answer(ranking: Ranking) -> str:
    """Which stayed nearest and which scored highest, or the whole course in a sentence."""
    moved = [row for row in ranking.rows if row.forward is not None]
    scored = [row for row in moved if row.score is not None]
    if not moved:
        return "No KL was measured."
    nearest = min(moved, key=value)
    told = f"{label(nearest)} is nearest to the base, {kl(nearest)} nats/token off the task"
    if scored:
        best = max(scored, key=lambda row: row.score.tuned if row.score else 0.0)
        high = best.score.tuned if best.score else 0.0
        told += (
            f", and scores highest too ({high:.2f})"
            if best is nearest
            else f"; {label(best)} scores highest, {high:.2f} at {kl(best)}"
        )
    return told + "."


def kl(row: Standing) -> str:
    return words.SIGNS[row.kind] + words.nats(value(row))


def value(row: Standing) -> float:
    return row.forward.value if row.forward is not None else 0.0


def course(ranking: Ranking) -> Chart | None:
    """A curve's KL over the steps."""
    rows = [row for row in ranking.rows if row.step is not None and row.forward is not None]
    if ranking.kind != "curve" or not rows:
        return None
    means = [row.forward for row in rows if row.forward is not None]
    bounded = all(one.low is not None for one in means)
    kl = Series(
        name="KL off task",
        y=[one.value for one in means],
        low=[one.low for one in means] if bounded else None,
        high=[one.high for one in means] if bounded else None,
    )
    return Chart(
        title="KL off the task over the run",
        unit="nats/token, base‖tuned",
        x=[float(row.step or 0) for row in rows],
        series=[kl],
        zero=True,
        note="Band: 95 %, clustered by text.",
    )


def against(ranking: Ranking) -> Chart | None:
    """Score against KL, a colour a model (a curve is one)."""
    rows = [row for row in ranking.rows if row.score is not None and row.forward is not None]
    if not rows:
        return None
    xs, ys = [value(row) for row in rows], [row.score.tuned for row in rows if row.score is not None]
    if ranking.kind == "curve":
        series = [Series(name=ranking.task or "score", x=xs, y=ys)]
    else:
        series = [
            Series(name=row.name, x=xs, y=[y if m == n else None for m, y in enumerate(ys)])
            for n, row in enumerate(rows)
        ]
    return Chart(
        title="Score against KL",
        unit=f"{ranking.task or 'score'}, tuned",
        x=[float(row.step) if row.step is not None else float(n) for n, row in enumerate(rows)],
        series=series,
        path=True,
        x_label="KL off task, nats/token",
        names=[label(row) for row in rows],
        note="Further up: better at the task. Further left: still itself.",
    )
