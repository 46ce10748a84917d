"""The drawing: scales, ticks, gaps, bands."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from tests.report.made import EVIL

from kleash.report.charts import Chart, Scale, Series, frame, hover, linear_ticks, log_ticks, short, standalone, svg


def chart(*series: Series, n: int = 4, **changes: object) -> Chart:
    fields: dict[str, object] = {"title": "T", "unit": "u", "x": [float(i) for i in range(n)], "series": series}
    return Chart(**(fields | changes))  # type: ignore[arg-type]


def lines(drawn: str, css: str) -> list[int]:
    """Points of each polyline of a class."""
    found = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', drawn)
    return [len(points.split()) for name, points in found if css in name.split()]


def test_a_missing_value_is_a_gap_and_a_lonely_one_a_dot() -> None:
    drawn = svg(chart(Series(name="a", y=[1.0, 2.0, None, 3.0, None, 1.0, 2.0]), n=7))
    assert lines(drawn, "line") == [2, 2]
    assert drawn.count('class="dot') == 1


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_what_is_not_a_number_is_not_drawn(missing: float | None) -> None:
    drawn = svg(chart(Series(name="a", y=[1.0, 2.0, missing, missing])))
    assert lines(drawn, "line") == [2]
    assert "nan" not in drawn and "inf" not in drawn
    assert hover(chart(Series(name="a", y=[1.0, 2.0, missing, missing])))["series"][0]["points"][2:] == [None, None]


def test_a_series_without_values_is_left_out_and_the_others_keep_their_colour() -> None:
    c = chart(Series(name="a", y=[None] * 4), Series(name="b", y=[1.0, 2.0, 1.0, 2.0]))
    assert [(colour, series.name) for colour, series in c.drawn()] == [(2, "b")]
    assert hover(c)["series"][0]["colour"] == "c2"
    assert 'class="line c2"' in svg(c)


def test_nothing_measured_draws_an_empty_frame() -> None:
    assert "polyline" not in svg(chart(Series(name="a", y=[None] * 4)))


def test_one_step_and_a_constant_are_drawn() -> None:
    assert svg(chart(Series(name="a", y=[3.0]), n=1)).count('class="dot') == 1
    assert lines(svg(chart(Series(name="a", y=[0.0] * 4))), "line") == [4]


def test_the_band_covers_what_has_both_ends() -> None:
    band = Series(name="a", y=[1.0] * 4, low=[0.5, 0.5, None, 0.5], high=[1.5, 1.5, 1.5, 1.5])
    points = re.findall(r'<polygon class="band c1" points="([^"]*)"', svg(chart(band)))
    assert [len(each.split()) for each in points] == [4, 2]


def test_the_band_round_the_target_is_a_share_of_it() -> None:
    drawn = chart(Series(name="a", y=[0.0, 5.0, 10.0, 10.0]), target=[8.0, 8.0, None, 8.0], held=0.25)
    at = frame(drawn).y
    first, lonely = re.findall('class="held" points="(.*?)"', svg(drawn))
    ys = [float(point.split(",")[1]) for point in first.split()]
    assert ys == [at(6.0), at(6.0), at(10.0), at(10.0)]
    assert len(lonely.split()) == 2, "no band where there is no target"


def test_higher_is_further_up() -> None:
    (low, high, *_) = hover(chart(Series(name="a", y=[1.0, 2.0, 1.0, 1.0])))["series"][0]["points"]
    assert high[1] < low[1] and high[0] > low[0]


def test_equal_ratios_are_equal_distances_on_a_log_axis() -> None:
    points = hover(chart(Series(name="a", y=[0.01, 0.1, 1.0, 10.0]), log=True))["series"][0]["points"]
    gaps = [a[1] - b[1] for a, b in itertools.pairwise(points)]
    assert max(gaps) - min(gaps) <= 0.2  # pixels are rounded to tenths


def test_a_log_axis_needs_positive_values() -> None:
    assert lines(svg(chart(Series(name="a", y=[0.0, 0.1, 1.0, 10.0]), log=True)), "line") == [4]


def test_a_portrait_takes_the_series_own_x() -> None:
    points = hover(chart(Series(name="a", y=[1.0, 2.0, 3.0, 4.0], x=[0.0, 3.0, 1.0, None]), path=True))
    xs = [point[0] if point else None for point in points["series"][0]["points"]]
    assert xs[0] < xs[2] < xs[1] and xs[3] is None  # type: ignore[operator]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0.0, 9.7, [0, 2, 4, 6, 8]), (-3.0, 3.0, [-2, 0, 2])],
)
def test_linear_ticks(low: float, high: float, expected: list[float]) -> None:
    assert linear_ticks(low, high, 5) == expected


def test_log_ticks() -> None:
    assert log_ticks(0.009, 0.2, 5) == [0.01, 0.02, 0.05, 0.1, 0.2]
    assert log_ticks(1e-4, 1e2, 5) == [1e-4, 1e-2, 1.0, 1e2]
    assert len(log_ticks(0.6, 0.9, 5)) >= 3


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(2.0, 4.0, 100, 0)
    assert (scale(2.0), scale(3.0), scale(4.0)) == (100.0, 50.0, 0.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (3.14159, "3.142"),
        (12345.6, "12346"),
        (2e-6, "2e-6"),
        (4e7, "4e7"),
    ],
)
def test_short(value: float | None, text: str) -> None:
    assert short(value) == text


def test_a_chart_of_its_own_is_valid_xml_with_colours() -> None:
    drawn = standalone(chart(Series(name="a", y=[1.0, 2.0, 1.0, 2.0]), title=f"A {EVIL}"))
    root = ET.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert EVIL in (root.findtext("{http://www.w3.org/2000/svg}title") or "")
    assert "--k:#17706b" in drawn
