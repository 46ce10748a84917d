"""Several tuned models of one base: in which order, what of the order is noise, and where the dots are."""

from dataclasses import replace
from pathlib import Path

from tests.report.audits import EVIL, interval, score
from tests.report.seen import Seen, fetches_nothing

from kleash.drift import records as r
from kleash.drift.standings import Ranking, Standing
from kleash.report.charts import hover
from kleash.report.drift import ranking as k


def standing(name: str, kl: float, tuned: float, gap: r.Interval | None = None, step: int | None = None) -> Standing:
    return Standing(
        name=name,
        step=step,
        forward=interval(kl),
        gap=gap,
        score=score("polite", "task", 0.4, tuned, "gained"),
        verdict="improved, still itself",
    )


def ranks(**changes: object) -> Ranking:
    rows = [
        standing("light", 0.02, 0.62),
        standing("middle", 0.021, 0.70, interval(0.001, 4.0)),
        standing("far", 0.3, 0.78, interval(0.279)),
    ]
    fields = {"kind": "ranks", "base": "kleash:tiny", "rows": rows, "task": "polite", "command": "kleash drift a b c d"}
    return Ranking(**(fields | {"made": "2026-12-03T04:31:00"} | changes))  # type: ignore[arg-type]


def curve() -> Ranking:
    rows = [standing("x", 0.01 * n, 0.4 + n / 10, None if n == 1 else interval(0.01), step=20 * n) for n in (1, 2, 3)]
    return ranks(kind="curve", rows=rows)


def test_the_table_has_each_model_with_its_numbers() -> None:
    lines = k.block(ranks(), [Path("ranking.html")]).plain.splitlines()
    assert "light" in lines[2] and "0.020 [0.018, 0.022]" in lines[2] and "0.620" in lines[2]
    assert "0.279 [0.251, 0.307]" in lines[4]
    assert lines[-2:] == ["again: kleash drift a b c d", "wrote ranking.html"]


def test_an_order_inside_the_noise_is_said_and_a_clear_one_is_not() -> None:
    (said,) = k.noise(ranks())
    assert "light and middle" in said and "chance" in said
    unknown = interval(0.2, low=None, high=None)
    assert k.inside_noise(unknown)


def test_columns_without_a_measurement_are_left_out() -> None:
    rows = [Standing(name="a", forward=interval(0.1)), Standing(name="b", forward=interval(0.2))]
    headings, _ = k.cells(ranks(rows=rows))
    assert headings == ["model", "KL off task, base||tuned"]


def test_each_model_is_a_dot_of_its_own_colour_at_its_kl_and_score() -> None:
    chart = k.against(ranks())
    assert chart is not None
    series = hover(chart)["series"]
    assert [one["name"] for one in series] == ["light", "middle", "far"]
    points = [next(p for p in one["points"] if p) for one in series]
    across, up = [x for x, _ in points], [-y for _, y in points]
    assert across == sorted(across) and up == sorted(up)
    assert hover(chart)["heads"] == ["light", "middle", "far"]
    assert k.course(ranks()) is None


def test_a_curve_is_told_by_step() -> None:
    made = curve()
    headings, rows = k.cells(made)
    assert headings[0] == "step" and [row[0] for row in rows] == ["20", "40", "60"]
    course = k.course(made)
    assert course is not None and list(course.x) == [20.0, 40.0, 60.0]
    assert (
        k.answer(made)
        == "step 20 is nearest to the base, 0.010 nats/token off the task; step 60 scores highest, 0.70 at 0.030."
    )


def test_the_page_is_whole_and_names_stay_names(tmp_path: Path) -> None:
    made = ranks(rows=[standing(EVIL, 0.1, 0.5), standing("b", 0.2, 0.6, interval(0.1))], partial="Ctrl-C")
    html = k.write_ranking(made, tmp_path / "ranking.html").read_text()
    fetches_nothing(html)
    seen = Seen(html)
    assert EVIL in seen.text and "Partial." in seen.text and "kleash drift a b c d" in seen.text
    assert k.write_ranking(curve(), tmp_path / "curve.html").stat().st_size < 100_000


def test_a_lower_bound_is_written_as_one() -> None:
    rows = [replace(row, kind="lower bound", gap=None) for row in ranks().rows]
    made = ranks(rows=rows)
    assert all(row[1].startswith("≥ 0.") for row in k.cells(made)[1])
    assert k.answer(made).startswith("light is nearest to the base, ≥ 0.020 nats/token")


def test_nothing_measured_is_said() -> None:
    assert k.answer(ranks(rows=[Standing(name="a")])) == "No KL was measured."
