"""Values with their intervals, one a row, as inline SVG: what differs from what is seen where whiskers part."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from markupsafe import Markup

from kleash.report.charts import Scale, finite, log_ticks, scale, short

#: A row with a name, one without (it belongs to the row above).
ROW, LESSER = 25, 12
WIDTH, TOP, FOOT = 560, 6, 24
LEFT, RIGHT = 142, 16
LONGEST_NAME = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """name: "" where it belongs to the row above. low, high: None without an interval. tip: said under the pointer."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    tip: str = ""
    tone: str = "c1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """`zero`: 0 is on the axis, marked. `log`: a log axis if all values are positive. `level`: a line to compare with.

    legend: (colour, name) where colours tell rows apart.
    """

    title: str
    unit: str
    rows: Sequence[Row]
    zero: bool = True
    log: bool = False
    level: float | None = None
    level_name: str = ""
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""


def height(chart: Forest) -> int:
    return TOP + sum(map(room, chart.rows)) + FOOT


def room(row: Row) -> int:
    return ROW if row.name else LESSER


def middles(rows: Sequence[Row]) -> list[float]:
    """The y of each row."""
    below = accumulate(map(room, rows), initial=TOP)
    return [top + room(row) / 2 for top, row in zip(below, rows, strict=False)]


def across(chart: Forest) -> Scale:
    points = [v for row in chart.rows for v in (row.value, row.low, row.high) if v is not None and finite(v)]
    points += [] if chart.level is None else [chart.level]
    log = chart.log and bool(points) and min(points) > 0
    return scale(points or [0.0, 1.0], LEFT, WIDTH - RIGHT, log=log, zero=chart.zero and not log)


def svg(chart: Forest) -> Markup:
    at, foot = across(chart), height(chart) - FOOT
    parts = []
    for tick in log_ticks(at.low, at.high, 6) if at.log else at.ticks(6):
        parts.append(Markup('<path class="grid" d="M{} {}V{}"/>').format(at(tick), TOP, foot))
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                at(tick), foot + 16, short(tick)
            )
        )
    if chart.zero and not at.log and at.low < 0 < at.high:
        parts.append(Markup('<path class="axis" d="M{} {}V{}"/>').format(at(0.0), TOP, foot))
    if chart.level is not None:
        parts.append(Markup('<path class="target" d="M{} {}V{}"/>').format(at(chart.level), TOP, foot))
    parts += [drawn(row, at, y) for row, y in zip(chart.rows, middles(chart.rows), strict=True)]
    title = Markup("<title>{}</title>").format(f"{chart.title}, {chart.unit}")
    return Markup('<svg viewBox="0 0 {} {}" role="img">{}{}</svg>').format(
        WIDTH, height(chart), title, Markup("").join(parts)
    )


def drawn(row: Row, at: Scale, y: float) -> Markup:
    """Name, whiskers and dot; the whole row answers to the pointer."""
    name = row.name if len(row.name) <= LONGEST_NAME else row.name[: LONGEST_NAME - 1] + "…"
    inside = Markup('<rect class="hit" x="0" y="{}" width="{}" height="{}"/>').format(
        y - room(row) / 2, WIDTH, room(row)
    )
    inside += Markup('<text class="name" x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 12, y + 4, name)
    if row.low is not None and row.high is not None and finite(row.low) and finite(row.high):
        inside += Markup('<path class="line" d="M{} {}H{}"/>').format(at(row.low), y, at(row.high))
    if finite(row.value):
        inside += Markup('<circle class="dot" cx="{}" cy="{}" r="4"/>').format(at(row.value), y)
    return Markup('<g class="row {}" data-tip="{}">{}</g>').format(row.tone, row.tip, inside)
