"""Small line charts as inline SVG: no script library, no network, readable in print and in the dark.

A chart is data (`Chart`, `Series`); `svg` draws it; `hover` is what the page's few lines of script need to show
values under the pointer. What was not measured is a gap in the line, never a zero.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

STANDALONE_STYLE = """
svg{background:#fff}.grid{stroke:#e6e6e6;fill:none}.tick{fill:#555;font-size:11px}
.line{fill:none;stroke:var(--k);stroke-width:1.8}.faint{stroke-width:1;opacity:.6}.band{fill:var(--k);opacity:.16}
.dot{fill:var(--k)}.held{fill:#b4532a;opacity:.1}.target{fill:none;stroke:#b4532a;stroke-width:1.4;stroke-dasharray:5 4}
.limit{fill:none;stroke:#b4532a;stroke-width:1.4}
.c1{--k:#17706b}.c2{--k:#c0842b}.c3{--k:#6a5acd}.c4{--k:#b0417a}.c5{--k:#3f7fbf}.c6{--k:#5f8a3a}
"""

Values = Sequence[float | None]

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 26
COLOURS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line. `low` and `high` draw a band around it; `x` overrides the chart's own x (a phase portrait)."""

    name: str
    y: Values
    low: Values | None = None
    high: Values | None = None
    x: Values | None = None
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A flag at one x. `css`: its colour's class."""

    x: float
    name: str
    css: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`target`, `limit`: a level per x, to be met (within the share `held`), and not to be passed. `path`: a phase
    portrait. `names`: of each x, where it is no step. `marks`: flags that stand over the lines.

    `log` holds only if every value is positive.
    """

    title: str
    unit: str
    x: Sequence[float]
    series: Sequence[Series]
    target: Values | None = None
    held: float | None = None
    limit: Values | None = None
    log: bool = False
    zero: bool = False
    path: bool = False
    x_label: str = "step"
    names: Sequence[str] = ()
    marks: Sequence[Mark] = ()
    note: str = ""

    def drawn(self) -> list[tuple[int, Series]]:
        """Colour and series, where anything was measured; a series keeps its colour when others are not drawn."""
        return [(n % COLOURS + 1, series) for n, series in enumerate(self.series) if measured(series.y)]


def finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def measured(*columns: Values | None) -> list[float]:
    return [value for column in columns if column for value in column if value is not None and finite(value)]


# ── scales ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Scale:
    """From a value to a pixel."""

    low: float
    high: float
    start: int
    stop: int
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(value) if self.log else value
        return round(self.start + (at - low) / (high - low) * (self.stop - self.start), 1)

    def ticks(self, most: int) -> list[float]:
        return log_ticks(self.low, self.high, most) if self.log else linear_ticks(self.low, self.high, most)


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 × 10ⁿ between low and high, at most `most` of them."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there is room; evenly spaced values within a short stretch."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [factor * 10.0**n for n in decades for factor in (1, 2, 5)]
    fine = [tick for tick in fine if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    coarse = [tick for tick in fine if math.log10(tick).is_integer()]
    if len(fine) < 3:
        return linear_ticks(low, high, most)
    return fine if len(fine) <= most else coarse[:: math.ceil(len(coarse) / most)]


def scale(values: list[float], start: int, stop: int, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale that holds all values with a little air; `zero` makes 0 part of it."""
    low, high = min(values), max(values)
    if log:
        return Scale(low / 1.3, high * 1.3, start, stop, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low if zero and low == 0 else low - air, high + air, start, stop)


@dataclass(frozen=True, slots=True)
class Frame:
    """Both scales of one chart."""

    x: Scale
    y: Scale

    def point(self, x: float | None, y: float | None) -> tuple[float, float] | None:
        """The pixel of a value, None for what was not measured (or cannot stand on a log axis)."""
        if x is None or y is None or not (finite(x) and finite(y)) or (self.y.log and y <= 0):
            return None
        return self.x(x), self.y(y)


def frame(chart: Chart) -> Frame:
    drawn = [series for _, series in chart.drawn()]
    xs = measured(*(series.x or chart.x for series in drawn)) or [0.0, 1.0]
    ys = measured(*(column for s in drawn for column in (s.y, s.low, s.high)), chart.target, chart.limit) or [0.0, 1.0]
    log = chart.log and min(ys) > 0
    across = scale(xs, LEFT, WIDTH - RIGHT) if chart.path else Scale(*span(xs), LEFT, WIDTH - RIGHT)
    return Frame(across, scale(ys, HEIGHT - BOTTOM, TOP, log=log, zero=chart.zero))


def span(xs: list[float]) -> tuple[float, float]:
    low, high = min(xs), max(xs)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


# ── drawing ────────────────────────────────────────────────────────────────────────────────────────────────


def svg(chart: Chart) -> Markup:
    """The chart as one `<svg>`; colours come from the page's style sheet (classes c1, c2, …)."""
    at = frame(chart)
    parts = [*axes(chart, at)]
    if chart.target and chart.held is not None:
        low, high = ([None if y is None else y * (1 + sign * chart.held) for y in chart.target] for sign in (-1, 1))
        parts += band(at, chart.x, low, high, "held")
    for name, level in (("target", chart.target), ("limit", chart.limit)):
        parts += [polyline(run, name) for run in runs(at, chart.x, level or [None] * len(chart.x))]
    for colour, series in chart.drawn():
        parts += line(chart, at, series, f"c{colour}")
    parts += flags(chart.marks, at.x)
    title = Markup("<title>{}</title>").format(f"{chart.title}, {chart.unit}" if chart.unit else chart.title)
    cross = Markup('<g class="cross"></g>')
    return Markup('<svg viewBox="0 0 {} {}" role="img">{}{}{}</svg>').format(
        WIDTH, HEIGHT, title, Markup("").join(parts), cross
    )


def standalone(chart: Chart) -> Markup:
    """The chart as an SVG file of its own, with its colours and a white ground."""
    drawing = svg(chart)
    opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"')
    style = Markup("<style>{}</style>").format(Markup(STANDALONE_STYLE))
    start, rest = drawing.split(">", 1)
    return opening + start.removeprefix("<svg") + Markup(">") + style + rest


def axes(chart: Chart, at: Frame) -> Iterable[Markup]:
    for tick in at.y.ticks(5):
        y = at.y(tick)
        yield Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y, WIDTH - RIGHT)
        yield Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
            LEFT - 8, y + 3.5, short(tick)
        )
    room = WIDTH - RIGHT - 7 * len(chart.x_label) - 12
    for tick in at.x.ticks(6):
        if at.x(tick) > room or not (chart.path or float(tick).is_integer()):
            continue
        yield Markup('<text class="tick" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            at.x(tick), HEIGHT - BOTTOM + 16, short(tick)
        )
    yield Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
        WIDTH - RIGHT, HEIGHT - BOTTOM + 16, chart.x_label
    )


def flags(marks: Sequence[Mark], across: Scale) -> Iterable[Markup]:
    """A thin upright with its name on top; those that would cover each other step aside."""
    taken = -math.inf
    for mark in sorted(marks, key=lambda mark: mark.x):
        if across.low <= mark.x <= across.high:
            x = across(mark.x)
            yield Markup('<path class="mark {}" d="M{} {}V{}"/>').format(mark.css, x, TOP, HEIGHT - BOTTOM)
            taken = max(x, taken + 9)
            yield Markup('<text class="mark {}" x="{}" y="{}" text-anchor="middle">{}</text>').format(
                mark.css, taken, TOP - 3, mark.name
            )


def line(chart: Chart, at: Frame, series: Series, css: str) -> Iterable[Markup]:
    """The band, then the line, broken wherever a value is missing; a lonely point becomes a dot."""
    xs = series.x or chart.x
    if series.low and series.high:
        yield from band(at, xs, series.low, series.high, f"band {css}")
    for run in runs(at, xs, series.y):
        if len(run) == 1 or chart.path:
            yield from (
                Markup('<circle class="dot {}" cx="{}" cy="{}" r="{}"/>').format(css, x, y, 2.2) for x, y in run
            )
        if len(run) > 1:
            yield polyline(run, f"line {css}" + (" faint" if series.faint or chart.path else ""))


def band(at: Frame, xs: Values, low: Values, high: Values, css: str) -> Iterable[Markup]:
    both = [below is not None and above is not None for below, above in zip(low, high, strict=True)]
    lower = runs(at, xs, [value if paired else None for value, paired in zip(low, both, strict=True)])
    upper = runs(at, xs, [value if paired else None for value, paired in zip(high, both, strict=True)])
    for down, up in zip(lower, upper, strict=True):
        points = " ".join(f"{x},{y}" for x, y in [*down, *reversed(up)])
        yield Markup('<polygon class="{}" points="{}"/>').format(css, points)


def runs(at: Frame, xs: Values, ys: Values) -> list[list[tuple[float, float]]]:
    """The pixels of the line, one list for each stretch without a gap."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        point = at.point(x, y)
        if point is None:
            found.append([])
        else:
            found[-1].append(point)
    return [run for run in found if run]


def polyline(points: list[tuple[float, float]], css: str) -> Markup:
    joined = " ".join(f"{x},{y}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(css, joined)


# ── under the pointer ──────────────────────────────────────────────────────────────────────────────────────


def hover(chart: Chart) -> dict[str, Any]:
    """Names, values and pixels by index, for the page's script."""
    at = frame(chart)
    return {
        "path": chart.path,
        "steps": [short(step) for step in chart.x],
        "heads": list(chart.names) or [f"step {short(step)}" for step in chart.x],
        "series": [
            {
                "name": series.name,
                "colour": f"c{colour}",
                "values": [short(value) if finite(value) else None for value in series.y],
                "points": [at.point(x, y) for x, y in zip(series.x or chart.x, series.y, strict=True)],
            }
            for colour, series in chart.drawn()
        ],
    }


def short(value: float | None) -> str:
    """A number in as few characters as it needs: 4 significant digits, "–" for unmeasured."""
    if value is None or not math.isfinite(value):
        return "–"
    if value != 0 and (abs(value) >= 1e5 or abs(value) < 1e-4):
        return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
