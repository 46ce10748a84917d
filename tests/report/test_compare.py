"""Runs side by side: the table, the page."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.report.made import EVIL, made_run, reading, step, write_run
from tests.tolerances import EXACT

from kleash.report import figures
from kleash.report.compare import Row, compare, groups, row, table, verdict
from kleash.report.log import load


def printed(rows: list[Row]) -> str:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None).print(table(rows))
    return out.getvalue()


def test_a_row_is_the_mean_of_the_last_tenth(tmp_path: Path) -> None:
    n = 30
    steps = [step(i, n, score=float(i), kl_ref=reading(2.0 * i), distinct_2=None) for i in range(n)]
    got = row("a", write_run(tmp_path, [*steps]), fluency=0.9)
    assert got.reward == pytest.approx((27 + 28 + 29) / 3, rel=EXACT)
    assert got.kl == pytest.approx(2 * (27 + 28 + 29) / 3, rel=EXACT)
    assert (got.fluency, got.distinct_2) == (0.9, None)


def test_the_table_shows_dashes_and_no_empty_columns() -> None:
    lines = printed([Row(run="beta 0", reward=0.99, kl=151.0), Row(run="[bold]x[/oops]", reward=0.74)]).splitlines()
    assert lines[0].split() == ["run", "reward", "KL", "nats/sequence"]
    assert lines[1].split() == ["beta", "0", "0.990", "151.00"]
    assert lines[2].split() == ["[bold]x[/oops]", "0.740", "–"]


def test_the_verdict_names_the_two_ends() -> None:
    rows = [Row(run="beta 0", reward=0.99, kl=151.0), Row(run="target 4", reward=0.74, kl=4.0)]
    assert verdict(rows) == (
        "The highest reward: beta 0, 0.99 at 151.0 nats per sequence. "
        "The closest to the reference: target 4, 0.74 at 4.0 nats."
    )
    assert verdict([Row(run="only")]) == "only"


def test_the_page_lays_the_runs_over_each_other(tmp_path: Path) -> None:
    runs = {"free": made_run(tmp_path / "a", target=None, beta=0.0), EVIL: made_run(tmp_path / "b")}
    fluency = {"free": {0: 0.95, 39: 0.0}, EVIL: {0: 0.95, 39: 0.93}}
    html = compare(runs, tmp_path / "compare.html", curves={"Fluency": fluency}).read_text(encoding="utf-8")
    assert len(html.encode()) < 400_000
    assert "<h3>Fluency</h3>" in html.replace(" </h3>", "</h3>")
    assert EVIL not in html and "alert(1)" in html
    assert "lovely, and the music was wonderful." in html


def test_a_run_keeps_its_colour_where_another_has_nothing(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b")
    logs = {"a": load(a), "b": load(b)}
    fluency = next(c for c in groups(logs, {"Fluency": {"b": {0: 0.9, 10: 0.8}}})[0][2] if c.title == "Fluency")
    assert [(colour, series.name) for colour, series in fluency.drawn()] == [(2, "b")]


def test_a_shorter_run_is_drawn_on_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_POINTS", 10)
    logs = {"long": load(made_run(tmp_path / "a", 40)), "short": load(made_run(tmp_path / "b", 20))}
    score = groups(logs, {})[0][2][0]
    long, short = (series.y for series in score.series)
    assert [value is not None for value in long] == [True] * 10
    assert [value is not None for value in short] == [True] * 5 + [False] * 5
