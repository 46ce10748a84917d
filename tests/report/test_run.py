"""The report of a run: what it says, that it needs nothing from outside, and that model text stays text."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.report.made import CONFIG, EVIL, made_run, reading, step, write_run
from tests.report.seen import Seen, fetches_nothing

from kleash.errors import RunError
from kleash.report import figures, words
from kleash.report.figures import groups
from kleash.report.log import Log, load
from kleash.report.run import write_charts, write_report
from kleash.report.toml import toml
from kleash.runlog import Resume, RunEnd, RunStart, Sample


def page(folder: Path, **changes: Any) -> str:
    return write_report(made_run(folder, **changes)).read_text(encoding="utf-8")


def log_of(folder: Path, n: int = 30, **changes: object) -> Log:
    return load(write_run(folder, [step(i, n, **changes) for i in range(n)]))


# ── one file, nothing from outside ──────────────────────────────────────────────────────────────────────────


def test_one_small_page_that_fetches_nothing(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert len(html.encode()) < 400_000
    fetches_nothing(html)
    assert "connect-src" not in Seen(html).policy()


@pytest.mark.slow
def test_a_very_long_run_stays_small(tmp_path: Path) -> None:
    html = page(tmp_path, steps=800)
    assert len(html.encode()) < 1_500_000
    assert "Each point is the mean of 2 steps." in html


def test_light_dark_and_print_are_thought_of(tmp_path: Path) -> None:
    html = page(tmp_path)
    assert "prefers-color-scheme:dark" in html and "@media print" in html


# ── text that others wrote stays text ──────────────────────────────────────────────────────────────────────


def test_hostile_text_is_shown_and_never_run(tmp_path: Path) -> None:
    seen = Seen(page(tmp_path))
    assert seen.text.count(EVIL) >= 3  # a notice, a prompt, a completion
    assert not [tag for tag, attributes in seen.tags if tag == "img" or "onerror" in attributes]


def test_hostile_names_cannot_end_the_data_block(tmp_path: Path) -> None:
    seen = Seen(page(tmp_path, scores={EVIL: 0.1, "other": 0.2}))
    data = [json.loads(text) for kind, text in seen.scripts if kind == "application/json"]
    assert EVIL in [series["name"] for chart in data for series in chart["series"]]
    assert len([kind for kind, _ in seen.scripts if kind is None]) == 1


def test_half_a_surrogate_does_not_stop_the_report(tmp_path: Path) -> None:
    samples = [Sample(step=0, prompt="a \ud800", completion="b \udfff")]
    write_run(tmp_path, [step(0, 10)], samples)
    assert write_report(tmp_path).stat().st_size > 0


# ── what it says ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_says_what_happened(tmp_path: Path) -> None:
    text = " ".join(Seen(page(tmp_path)).text.split())
    for part in (
        "The leash held:", "nats/sequence against a target of 4", "The score rose from", "Finished after 40 steps.",
        "kleash:tiny", "rloo (group_size 8)", "exact", "torch 2.9.1", "weights 4f1c4f1c4f1c", "Peak memory", "0.61 GB",
        "lovely, and the music was wonderful.", "step 39", "KL 4.10 nats", "step-000040", "policy||reference",
    ):  # fmt: skip
        assert part in text, part
    assert "never shown" not in text


@pytest.mark.parametrize(
    ("kl", "said"),
    [
        (4.28, "The leash held: 4.28 nats/sequence against a target of 4 (+7 %)."),
        (4.8, "Nearly on target: 4.8 nats/sequence against a target of 4 (+20 %)."),
        (9.0, "Above target: 9 nats/sequence against a target of 4 (+125 %)."),
        (1.0, "Below target: 1 nats/sequence against a target of 4 (-75 %)."),
    ],
)
def test_the_verdict_on_the_leash(tmp_path: Path, kl: float, said: str) -> None:
    assert words.leash(log_of(tmp_path, kl_ref=reading(kl), beta=0.05)) == said


def test_a_leash_that_let_go_is_not_what_holds(tmp_path: Path) -> None:
    steps = [step(i, 30, kl_ref=reading(0.1), beta=0.05 * 0.9**i) for i in range(30)]
    said = words.leash(load(write_run(tmp_path, [*steps])))
    assert said.startswith("Below target: 0.1 nats") and "Beta fell to 0.002355" in said and "learning rate" in said


def test_the_verdict_without_a_target(tmp_path: Path) -> None:
    free = log_of(tmp_path / "a", target=None, beta=0.0, kl_ref=reading(151.0))
    assert words.leash(free) == "The policy moved 151 nats/sequence from its reference, with no leash (beta 0)."
    fixed = log_of(tmp_path / "b", target=None, beta=0.05, kl_ref=reading(3.0))
    assert words.leash(fixed) == "The policy moved 3 nats/sequence from its reference, under beta 0.05 and no target."


def test_a_target_per_token_is_judged_per_token(tmp_path: Path) -> None:
    log = log_of(tmp_path, target="0.2 nats/token", kl_ref_token=reading(0.2, "nats/token"))
    assert words.leash(log) == "The leash held: 0.2 nats/token against a target of 0.2 (+0 %)."
    assert groups(log)[0][2][0].unit == "nats/token"


def test_lost_variety_is_said(tmp_path: Path) -> None:
    n = 30
    steps = [step(i, n, distinct_2=0.64 - 0.5 * i / (n - 1)) for i in range(n)]
    assert "Variety fell: distinct-2 from 0.62 to 0.16." in words.verdict(load(write_run(tmp_path, [*steps])))


def test_an_unfinished_run_and_a_stopped_one_are_told_apart(tmp_path: Path) -> None:
    steps = [step(i, 9) for i in range(9)]
    assert "no end recorded" in words.ending(load(write_run(tmp_path / "a", [*steps])))
    stopped = write_run(tmp_path / "b", [*steps, RunEnd(reason="interrupted", step=9)])
    assert words.ending(load(stopped)).startswith("Ended after 9 steps: interrupted.")


# ── what was not measured ──────────────────────────────────────────────────────────────────────────────────


def test_unmeasured_is_a_gap_never_zero(tmp_path: Path) -> None:
    steps = [step(i, 9, kl_ref=None if i == 4 else reading(3.0 + i), entropy=None) for i in range(9)]
    log = load(write_run(tmp_path, [*steps]))
    (_, _, leash), *_ = groups(log)
    assert leash[0].series[0].y == [3, 4, 5, 6, None, 8, 9, 10, 11]
    assert "Entropy" not in [chart.title for _, _, drawn in groups(log) for chart in drawn]


def test_a_run_that_measured_nothing_still_has_a_report(tmp_path: Path) -> None:
    nothing = {name: None for name in step(0, 9).__dataclass_fields__ if name not in ("step", "beta")}
    tables = ["scores", "scores_std", "scores_shaped", "scores_clipped", "disagreement", "tail", "seconds"]
    tables += ["tokens_forward", "kl_class", "kl_share"]
    blank = nothing | {name: {} for name in tables} | {"unscored": 0}
    write_run(tmp_path, [step(0, 9, **blank)])
    text = Seen(write_report(tmp_path).read_text()).text
    assert "KL was not measured." in text and "The score was not measured." in text


def test_the_kl_by_class_has_its_charts(tmp_path: Path) -> None:
    parts = {"kl_class": {"content": 0.3, "eos": 0.1}, "kl_share": {"content": 0.9, "eos": 0.1}}
    drawn = {chart.title: chart for _, _, some in groups(log_of(tmp_path, 6, **parts)) for chart in some}
    assert [(s.name, s.y[0]) for s in drawn["Share of the KL"].series if s.y[0] is not None] == [
        ("content", 0.9),
        ("eos", 0.1),
    ]
    assert "KL by class of token" in drawn


def test_a_shaped_score_has_a_chart_of_its_own(tmp_path: Path) -> None:
    def titles(folder: str, **more: float) -> list[str]:
        log = log_of(tmp_path / folder, 6, **more)
        return [chart.title for _, _, drawn in groups(log) for chart in drawn]

    assert "Shaped score" not in titles("raw")
    assert "Shaped score" in titles("shaped", score_shaped=0.5)


def test_means_of_stretches_leave_out_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_POINTS", 3)
    scores = [1.0, 3.0, None, 5.0, None, None]
    steps = [step(i, 6, score=score, scores={}) for i, score in enumerate(scores)]
    chart = next(c for _, _, drawn in groups(load(write_run(tmp_path, [*steps]))) for c in drawn if c.title == "Score")
    assert chart.x == [0, 2, 4]
    assert chart.series[0].y == [2.0, 5.0, None]


def test_a_price_below_zero_is_said_to_be_missing_on_the_log_axis(tmp_path: Path) -> None:
    log = log_of(tmp_path, 9, price=-0.1)
    assert "not positive" in groups(log)[0][2][1].note


# ── reading the log ────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_present_line_of_a_resumed_run_is_shown(tmp_path: Path) -> None:
    lost = [step(i, 9, score=9.0) for i in range(6)]
    again = [step(i, 9, score=0.5) for i in range(4, 9)]
    log = load(write_run(tmp_path, [*lost, Resume(step=4), *again]))
    assert [s.step for s in log.steps] == list(range(9))
    assert [s.score for s in log.steps] == [9.0] * 4 + [0.5] * 5


@pytest.mark.parametrize("events", [[], [RunStart(config={}, started="now")]])
def test_nothing_to_report_is_an_error_that_says_so(tmp_path: Path, events: list[RunStart]) -> None:
    write_run(tmp_path, [*events])
    with pytest.raises(RunError, match="has no step yet"):
        write_report(tmp_path)


def test_no_run_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"events\.jsonl"):
        write_report(tmp_path / "nowhere")


# ── doing it again ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_config_comes_back_from_its_toml() -> None:
    tree = CONFIG | {"odd": {"a key": '\x7f\x00\n"\\ é', "none": [], "nested": [{"a": 1}], "on": True, "small": 1e-07}}
    assert tomllib.loads(toml(tree)) == tree


def test_none_is_left_out_of_toml() -> None:
    assert tomllib.loads(toml({"a": None, "b": {"c": None, "d": {"e": None, "f": 1}}})) == {"b": {"d": {"f": 1}}}


def test_the_page_shows_a_config_that_can_be_run(tmp_path: Path) -> None:
    text = Seen(page(tmp_path)).text
    shown = re.search(r'out = "runs/made".*adam_betas = \[[^]]*\]', text, re.S)
    assert shown and tomllib.loads(shown[0])["kl"] == CONFIG["kl"]


def test_charts_as_files(tmp_path: Path) -> None:
    files = write_charts(made_run(tmp_path))
    assert tmp_path / "charts" / "kl-to-the-reference.svg" in files
    assert all(file.read_text().startswith("<svg xmlns=") for file in files)
