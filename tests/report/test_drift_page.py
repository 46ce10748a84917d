"""The page of an audit: whole, small, from one file; model text stays text; the charts are where the numbers are."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from tests.report.audits import (
    EVIL,
    GATES,
    SCORES,
    STEERING,
    WORDS,
    audit,
    distribution,
    off_task,
    passage,
    score,
    side,
    unchanged,
)
from tests.report.seen import Seen, fetches_nothing

from kleash.drift import records as r
from kleash.report import forest
from kleash.report.drift import charts, heat
from kleash.report.drift.page import write_page
from kleash.report.forest import Forest, Row

MOST_BYTES = 1_500_000


def page(folder: Path, made: r.Audit) -> str:
    return write_page(made, folder / "drift.html").read_text(encoding="utf-8")


def test_one_page_that_fetches_nothing_and_admits_no_script_but_its_own(tmp_path: Path) -> None:
    html = page(tmp_path, audit())
    fetches_nothing(html)
    assert "prefers-color-scheme:dark" in html and "@media print" in html
    fetches_nothing(page(tmp_path, unchanged()))


def test_everything_the_audit_has_is_on_it(tmp_path: Path) -> None:
    text = Seen(page(tmp_path, audit(partial="Ctrl-C after 40 of 312 texts"))).text
    said = [
        "party trick",
        "Large drift off the task, gain on one task, none on its sibling.",
        "Ctrl-C after 40 of 312 texts",
        *(gate.text for gate in GATES),
        "off-task KL at least 0.05: lower bound 0.081",
        "arithmetic -0.13 [-0.19, -0.07]",
        "0.094 [0.085, 0.103]",
        "0.305 [0.274, 0.336]",
        "2,266 changed, 2,104 beyond rounding",
        *(each.name for each in SCORES),
        "67 × the noise floor",
        "RL's Razor says so. A guess.",
        "summarising",
        "75–100 %",
        "certainly! certainly! cert",
        "distinct 4",
        "score 0.90",
        "kleash drift kleash:smollm2 runs/polite/best --seed 0",
        "c07e" * 16,
        "batch shape 3e-8",
        "torch 2.13.0",
    ]
    assert [words for words in said if words not in text] == []


def test_nothing_is_said_of_what_was_not_measured(tmp_path: Path) -> None:
    text = Seen(page(tmp_path, unchanged())).text
    for heading in ("Was it worth it", "How it changed", "Samples", "Word by word", "Why this verdict"):
        assert heading not in text


def test_text_that_models_and_files_wrote_stays_text(tmp_path: Path) -> None:
    made = audit(
        tuned=side(EVIL),
        command=EVIL,
        partial=EVIL,
        judgement=r.Judgement(verdict="damaged", because=EVIL, conditions=[r.Condition(text=EVIL, met=True)]),
        gates=[r.Gate(text=EVIL, passed=True)],
    )
    seen = Seen(page(tmp_path, made))
    assert seen.text.count(EVIL) >= 20
    assert len(seen.scripts) == 1
    assert not [tag for tag, attributes in seen.tags if tag == "img" or "onerror" in attributes]


def test_control_codes_and_turned_text_cannot_disorder_the_page(tmp_path: Path) -> None:
    html = page(tmp_path, audit())
    assert "\x1b" not in html and "\x07" not in html and "\u202e" not in html
    assert "unicode-bidi:isolate" in html
    html.encode()  # the lone surrogate is written as an escape


def test_a_large_audit_is_a_small_page(tmp_path: Path) -> None:
    long = ["soup & <salad>"] * 700
    many = [passage(n, "Say " * 2000, long) for n in range(60)]
    pairs = [r.Pair(prompt="p" * 9000, base="b" * 9000, tuned="<" * 9000) for _ in range(120)]
    html = page(tmp_path, audit(distributions=[off_task(passages=many), off_task(passages=many)], pairs=pairs))
    assert len(html.encode()) < MOST_BYTES
    assert "of 60 kept texts" in html and "16 of 120" in html


# ── charts ──────────────────────────────────────────────────────────────────────────────────────────────────


def pixels(svg: str) -> tuple[list[float], list[tuple[float, float]]]:
    """The x of each dot, and both ends of each whisker."""
    dots = [float(x) for x in re.findall(r'class="dot" cx="([\d.]+)"', svg)]
    whiskers = [(float(a), float(b)) for a, b in re.findall(r'class="line" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)]
    return dots, whiskers


def test_dots_and_whiskers_are_where_their_numbers_are() -> None:
    rows = [
        Row(name="a", value=1.0, low=0.5, high=2.0),
        Row(name="b", value=4.0, low=3.0, high=4.5),
        Row(name="c", value=0.0),
    ]
    dots, whiskers = pixels(forest.svg(Forest(title="t", unit="u", rows=rows)))
    per_unit = (dots[1] - dots[0]) / 3
    zero = dots[2]
    values = [(x - zero) / per_unit for x in [*dots, *(end for pair in whiskers for end in pair)]]
    expected = [1.0, 4.0, 0.0, 0.5, 2.0, 3.0, 4.5]
    assert [abs(v - e) * per_unit < 1 for v, e in zip(values, expected, strict=True)] == [True] * 7  # within a pixel


def test_a_log_axis_has_equal_steps_for_equal_factors() -> None:
    rows = [Row(name=str(v), value=v) for v in (0.01, 0.1, 1.0, 10.0)]
    dots, _ = pixels(forest.svg(Forest(title="t", unit="u", rows=rows, log=True)))
    steps = [b - a for a, b in pairwise(dots)]
    assert max(steps) - min(steps) < 1 and steps[0] > 50


def test_not_finite_and_missing_bounds_draw_no_whisker() -> None:
    rows = [Row(name="a", value=float("nan")), Row(name="b", value=1.0, low=None, high=2.0)]
    assert pixels(forest.svg(Forest(title="t", unit="u", rows=rows)))[1] == []
    assert "<svg" in forest.svg(Forest(title="t", unit="u", rows=[]))


def test_domains_are_ordered_by_how_far_they_moved() -> None:
    chart = charts.parts(off_task(), "domains", 0.0014)
    assert chart is not None and chart.level == 0.0014
    values = [row.value for row in chart.rows]
    assert values == sorted(values, reverse=True)
    assert "12 % of all the KL" in chart.rows[0].tip


def test_the_tail_groups_the_sets_under_each_quantile() -> None:
    chart = charts.tails(audit())
    assert chart is not None
    assert [row.name for row in chart.rows if row.name] == ["mean", "median", "90 %", "95 %", "99 %", "99.9 %", "max"]
    assert len(chart.rows) == 7 * 3
    assert [name for _, name in chart.legend] == ["on task", "off task", "its own words"]
    assert charts.tails(unchanged()) is None


# ── the heat map ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "css"), [(None, "hx"), (0.0, "h0"), (0.0099, "h0"), (0.01, "h1"), (0.3, "h4"), (2.99, "h5"), (80.0, "h6")]
)
def test_a_tokens_colour_is_its_kl(value: float | None, css: str) -> None:
    assert heat.level(value) == css


def test_the_texts_that_moved_most_come_first_and_whole() -> None:
    texts = [passage(n, "p", WORDS * 100, seed=n) for n in range(9)]
    found = heat.shown(texts)
    values = [one.forward for one in found]
    assert values == sorted(values, reverse=True) and values[0] == max(t.forward for t in texts)
    assert len(found) == heat.MOST_TOKENS // len(WORDS * 100)
    assert [one.cut for one in found] == [0] * len(found)
    (alone,) = heat.shown([passage(0, "p", ["x"] * (heat.MOST_TOKENS + 7))])
    assert alone.cut == 7


def test_line_breaks_are_seen_and_nothing_vanishes() -> None:
    assert heat.visible(",\n") == ",⏎\n"
    assert heat.visible(STEERING) == "�[31mred��txet�"
    assert heat.visible("") == "∅"


def test_an_unmeasured_score_of_a_sample_has_no_line(tmp_path: Path) -> None:
    made = audit(
        pairs=[r.Pair(prompt="p", base="b", tuned="t")],
        scores=[score("s", "task", 0.0, 0.0, "unclear")],
        distributions=[distribution("off task", 0.1, None)],
    )
    assert "score 0" not in Seen(page(tmp_path, made)).text
