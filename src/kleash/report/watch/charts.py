"""Which charts tell the story of a watched log: one run in detail, or several laid over each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kleash.report.charts import Chart, Mark, Series, Values, measured
from kleash.report.watch import price
from kleash.report.watch.case import Case
from kleash.runlog.series import Column, TrainLog

#: A longer log is drawn as means of equal stretches; more points would not be seen.
MOST_POINTS = 400
#: So many lines fit into one chart.
MOST_LINES = 6
#: Titles of the charts that a notebook shows.
VIEWED = ("KL to the reference", "Reward")

Group = tuple[str, str, list[Chart]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a log in stretches, each drawn as one point at its first step."""

    log: TrainLog
    starts: NDArray[np.int64]

    @classmethod
    def where(cls, log: TrainLog, *columns: Column | None) -> "Rows":
        """Rows in which any of these columns holds a number: evaluations have rows of their own."""
        there = [np.isfinite(x) for x in columns if x is not None]
        rows = np.flatnonzero(np.logical_or.reduce(there)) if there else np.array([], dtype=np.int64)
        return cls(log, rows[:: max(1, math.ceil(len(rows) / MOST_POINTS))])

    @property
    def x(self) -> list[float]:
        return [float(step) for step in self.log.step[self.starts]]

    @property
    def last(self) -> list[int]:
        """The last row of each stretch."""
        return [int(end) - 1 for end in [*self.starts[1:], len(self.log.step)]]

    def column(self, x: Column | None) -> list[float | None]:
        if x is None or not len(self.starts):
            return [None] * len(self.starts)
        there = np.isfinite(x)
        total = np.add.reduceat(np.where(there, x, 0.0), self.starts)
        count = np.add.reduceat(there.astype(int), self.starts)
        return [float(t / n) if n else None for t, n in zip(total, count, strict=True)]


def groups(cases: Sequence[Case]) -> list[Group]:
    """(heading, introduction, charts); a chart of which nothing was measured is left out."""
    found = alone(cases[0]) if len(cases) == 1 else together(cases)
    drawn = [(heading, intro, [chart for chart in charts if chart.drawn()]) for heading, intro, charts in found]
    return [group for group in drawn if group[2]]


# ── one run ────────────────────────────────────────────────────────────────────────────────────────────────


def alone(case: Case) -> list[Group]:
    log = case.log
    marks = marks_of(case)
    texts = ("distinct_2", "seq_rep_4", "truncated")
    mismatch = "probability" if (tag := log.kl.get("kl_sampler")) and tag.unit is None else "nats/token"
    return [
        (
            "The leash and what it buys",
            "Drift from the reference, and the reward at the same steps. Flags are the findings, numbered as above.",
            [kl(case, marks), reward(log, marks), beta(log, marks), portrait([case]), held_out(log, marks)],
        ),
        (
            "The text",
            "Collapse shows here first.",
            [
                lines("Repetition and variety", "share", log, {name: name.replace("_", "-") for name in texts}, marks),
                lines("Length", "tokens/sample", log, {"length": "length"}, marks),
                lines("Entropy", "nats/token", log, {"entropy": "entropy"}, marks),
                lines("Compression", "bytes/compressed byte", log, {"compression_ratio": "compression"}, marks),
            ],
        ),
        (
            "The updates",
            "How each step moved the policy.",
            [
                lines("Size of an update", "nats/token", log, {"kl_old": "old policy against new"}, marks),
                lines("Mismatch of sampler and trainer", mismatch, log, {"kl_sampler": "mismatch"}, marks),
                lines("Gradient norm", "before clipping", log, {"grad_norm": "gradient norm"}, marks, logarithmic=True),
                lines("Clipped", "share of tokens", log, {"clip_fraction": "clip fraction"}, marks),
            ],
        ),
        ("Preferences", "Chosen against rejected.", preferences(log, marks)),
    ]


def marks_of(case: Case) -> list[Mark]:
    """Findings by their number on the page."""
    return [
        Mark(float(finding.since), str(number), finding.severity)
        for number, finding in enumerate(case.said.findings, 1)
    ]


def kl(case: Case, marks: Sequence[Mark]) -> Chart:
    """Per sequence where the lengths are known; with the target and the user's budget where their unit is the same."""
    log = case.log
    x, unit = log.column("kl_ref_sequence"), "nats/sequence"
    if x is None:
        x, unit = log.column("kl_ref"), "nats/token"
    rows = Rows.where(log, x)
    targets = rows.column(log.column("target")) if log.target_unit == unit else []
    limit = case.budget.value if case.budget and case.budget.unit == unit else None
    tag = log.kl.get("kl_ref")
    return Chart(
        title="KL to the reference",
        unit=unit,
        x=rows.x,
        series=[Series(name="KL", y=rows.column(x))],
        target=targets if measured(targets) else None,
        limit=[limit] * len(rows.x) if limit is not None else None,
        zero=True,
        marks=marks,
        note=f"Estimator: {tag.estimator}." if tag and tag.estimator else "",
    )


def reward(log: TrainLog, marks: Sequence[Mark]) -> Chart:
    parts = {f"reward/{name}": name for name in log.family("reward/")}
    names = {"reward": "reward"} | (parts if len(parts) > 1 else {})
    return lines("Reward", "mean over samples", log, names, marks)


def held_out(log: TrainLog, marks: Sequence[Mark]) -> Chart:
    names = {f"held_out/{name}": name for name in log.family("held_out/")}
    names |= {f"gold/{name}": f"gold {name}" for name in log.family("gold/")}
    return lines("Held out", "scores the run is not trained on", log, names, marks)


def beta(log: TrainLog, marks: Sequence[Mark]) -> Chart:
    """beta, and the price that equals it at an optimum; on a log axis where both are positive throughout."""
    rows = Rows.where(log, log.column("beta"), log.column("kl_ref_sequence"))
    betas, prices = rows.column(log.column("beta")), price.at_rows(log, rows.last)
    positive = bool(measured(betas)) and min(measured(betas)) > 0
    shown = [value if value is None or value > 0 else None for value in prices] if positive else prices
    dropped = " Stretches where it is not positive have no place on this axis." if shown != prices else ""
    return Chart(
        title="Beta and price",
        unit="reward per nat",
        x=rows.x,
        series=[Series(name="beta", y=betas), Series(name="price", y=shown, faint=True)],
        log=positive,
        zero=not positive,
        marks=marks,
        note=f"Price: slope of reward on KL over the last {price.WINDOW} rows.{dropped}",
    )


def portrait(cases: Sequence[Case]) -> Chart:
    """Reward over the square root of KL: how much each further step away bought. One line a run."""
    whole = all(case.log.column("kl_ref_sequence") is not None or case.log.column("kl_ref") is None for case in cases)
    column, unit = ("kl_ref_sequence", "√(nats/sequence)") if whole else ("kl_ref", "√(nats/token)")
    drawn = []
    for case in cases:
        x = case.log.column(column)
        rows = Rows.where(case.log, x)
        roots: list[float | None] = [
            None if value is None or value < 0 else math.sqrt(value) for value in rows.column(x)
        ]
        drawn.append((case, rows, roots, rows.column(case.log.column("reward"))))
    longest = max(drawn, key=lambda one: len(one[2]))
    heads = [f"step {step:g}" for step in longest[1].x] if len(cases) == 1 else []
    return Chart(
        title="Reward against distance",
        unit=unit,
        x=longest[1].x,
        series=[
            Series(name=case.name if len(cases) > 1 else "reward", x=pad(roots, longest[2]), y=pad(y, longest[2]))
            for case, _, roots, y in drawn
            if any(root is not None for root in roots)
        ],
        path=True,
        x_label=unit,
        names=heads,
        note="The slope is what a further step away buys.",
    )


def pad(values: Values, like: Values) -> list[float | None]:
    return [*values, *[None] * (len(like) - len(values))]


def preferences(log: TrainLog, marks: Sequence[Mark]) -> list[Chart]:
    return [
        lines("Margin", "of chosen over rejected", log, {"margin": "margin"}, marks),
        lines("Accuracy", "share of pairs", log, {"accuracy": "accuracy"}, marks),
        lines("Log-prob", "nats/sequence", log, {"logp_chosen": "chosen", "logp_rejected": "rejected"}, marks),
    ]


def lines(
    title: str,
    unit: str,
    log: TrainLog,
    names: Mapping[str, str],
    marks: Sequence[Mark],
    *,
    logarithmic: bool = False,
) -> Chart:
    """Columns of one log in a chart, over the rows that have any of them."""
    shown = {column: name for column, name in names.items() if log.column(column) is not None}
    rows = Rows.where(log, *(log.column(column) for column in shown))
    series = [
        Series(name=name, y=rows.column(log.column(column)), faint=number > 0 and column.startswith("reward/"))
        for number, (column, name) in enumerate(list(shown.items())[:MOST_LINES])
    ]
    more = len(shown) - len(series)
    return Chart(
        title=title,
        unit=unit,
        x=rows.x,
        series=series,
        log=logarithmic,
        zero=not logarithmic,
        marks=marks if series else (),
        note=f"And {more} more, which the log has." if more > 0 else "",
    )


# ── several runs ───────────────────────────────────────────────────────────────────────────────────────────

OVERLAYS = {
    "reward": ("Reward", "mean over samples"),
    "kl_ref_sequence": ("KL to the reference", "nats/sequence"),
    "kl_ref": ("KL to the reference", "nats/token"),
    "beta": ("Beta", "reward per nat"),
    "length": ("Length", "tokens/sample"),
    "entropy": ("Entropy", "nats/token"),
    "distinct_2": ("Distinct-2", "share"),
    "seq_rep_4": ("Seq-rep-4", "share"),
}


def together(cases: Sequence[Case]) -> list[Group]:
    charts = [overlay(cases, column, title, unit) for column, (title, unit) in OVERLAYS.items()]
    intro = "One colour a run, the same in every chart."
    return [("The runs, laid over each other", intro, [portrait(cases), *charts])]


def overlay(cases: Sequence[Case], column: str, title: str, unit: str) -> Chart:
    """On a grid of steps that all share, as wide as the coarsest of them needs, so that no line has holes."""
    first = min(int(case.log.step[0]) for case in cases)
    last = max(int(case.log.step[-1]) for case in cases)
    width = max([math.ceil((last - first + 1) / MOST_POINTS), *(gap(case.log, column) for case in cases)])
    x = list(range(first, last + 1, width))
    series = [Series(name=case.name, y=on_grid(case.log, column, first, width, len(x))) for case in cases]
    return Chart(title=title, unit=unit, x=[float(step) for step in x], series=series, zero=True)


def gap(log: TrainLog, column: str) -> int:
    """Steps between two rows that have this column: the widest usual one."""
    x = log.column(column)
    steps = log.step[np.isfinite(x)] if x is not None else log.step[:0]
    return max(1, int(np.quantile(np.diff(steps), 0.95))) if len(steps) > 2 else 1


def on_grid(log: TrainLog, column: str, first: int, width: int, cells: int) -> list[float | None]:
    x = log.column(column)
    if x is None:
        return [None] * cells
    there = np.isfinite(x)
    cell = (log.step[there] - first) // width
    total, count = np.zeros(cells), np.zeros(cells)
    np.add.at(total, cell, x[there])
    np.add.at(count, cell, 1)
    return [float(t / n) if n else None for t, n in zip(total, count, strict=True)]
