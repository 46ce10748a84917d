"""The page of watched logs: its charts against the columns, its samples, its size; one run and several."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.report.logs import HOSTILE, case, found, gamed, healthy, without_kl
from tests.tolerances import LOOP

from kleash.errors import RunError
from kleash.records import Target
from kleash.report.charts import Chart, Mark, svg
from kleash.report.watch import charts, samples
from kleash.report.watch.page import section, write_page
from kleash.report.which import write
from kleash.runlog.series import SampleText

MOST_BYTES = 1_500_000
FIXTURES = Path(__file__).parents[1] / "runlog" / "fixtures"


def drawn(title: str, *cases) -> Chart:
    return next(c for _, _, group in charts.groups(cases) for c in group if c.title == title)


def test_a_chart_holds_the_column_and_the_findings() -> None:
    chart = drawn("KL to the reference", found())
    assert chart.series[0].y == pytest.approx(list(found().log.columns["kl_ref_sequence"]), rel=LOOP)
    assert [mark.x for mark in chart.marks] == [finding.since for finding in found().said.findings]
    assert chart.limit is None and chart.target is None
    bounded = replace(found(), budget=Target.parse("12 nats/sequence"))
    assert drawn("KL to the reference", bounded).limit == [12.0] * 300
    assert drawn("KL to the reference", case(healthy())).target == [2.0] * 200


def test_a_long_log_is_drawn_as_means_and_holes_are_no_zeros() -> None:
    log = healthy(steps=4001)
    log.columns["kl_ref_sequence"][5] = np.nan
    chart = drawn("KL to the reference", case(log))
    assert len(chart.x) <= charts.MOST_POINTS
    width = int(chart.x[1] - chart.x[0])
    expected = np.nanmean(log.columns["kl_ref_sequence"][:width])
    assert chart.series[0].y[0] == pytest.approx(float(expected), rel=LOOP)


def test_evaluations_have_rows_of_their_own() -> None:
    log = healthy()
    held = np.full(200, np.nan)
    held[19::20] = 0.5
    chart = drawn("Held out", case(replace(log, columns=log.columns | {"held_out/math": held})))
    assert chart.x == [float(step) for step in range(20, 201, 20)] and chart.series[0].y == [0.5] * 10


def test_the_portrait_is_reward_over_the_root_of_kl() -> None:
    chart = drawn("Reward against distance", found())
    kl, reward = found().log.columns["kl_ref_sequence"], found().log.columns["reward"]
    assert chart.path and chart.series[0].x == pytest.approx([math.sqrt(value) for value in kl], rel=LOOP)
    assert chart.series[0].y == pytest.approx(list(reward), rel=LOOP)


def test_several_runs_share_a_grid_and_their_colours() -> None:
    sparse = healthy(steps=200)
    every = np.arange(0, 200, 10)
    sparse = replace(sparse, step=sparse.step[every], columns={k: x[every] for k, x in sparse.columns.items()})
    cases = [case(gamed()), case(sparse), case(without_kl())]
    chart = drawn("Reward", *cases)
    assert [series.name for series in chart.series] == ["outputs", "healthy", "bare"]
    y = [value for x, value in zip(chart.x, chart.series[1].y, strict=True) if x <= 190]
    assert None not in y
    assert [colour for colour, _ in drawn("KL to the reference", *cases).drawn()] == [1, 2]
    assert drawn("Reward against distance", *cases).unit == "√(nats/sequence)"


def test_flags_step_aside_and_stay_inside() -> None:
    marks = [Mark(float(x), str(x), "alarm") for x in (5, 6, 50, 99)]
    text = str(svg(replace(drawn("Length", found()), marks=marks, x=list(map(float, range(1, 301))))))
    places = [float(at) for at in re.findall(r'<text class="mark \w+" x="([\d.]+)"', text)]
    assert len(set(places)) == 4 and text.count('<path class="mark') == 4
    assert 'class="mark note"' not in str(svg(replace(drawn("Length", found()), marks=[Mark(9000.0, "1", "note")])))


# ── samples ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_browser_has_both_ends_and_both_sides_of_the_change() -> None:
    (run,) = samples.browser([found()])
    steps = [one["step"] for one in run["steps"]]
    sampled, since = found().log.sample_steps, found().said.since
    assert since is not None and len(steps) <= samples.MOST_STEPS
    assert {sampled[0], sampled[-1], max(s for s in sampled if s < since)} <= set(steps)
    assert min(s for s in sampled if s >= since) in steps
    prompts = {tuple(one["prompt"] for one in step["samples"]) for step in run["steps"]}
    assert len(prompts) == 1  # the same prompts in one order
    assert samples.browser([case(healthy())]) == []


def test_huge_samples_are_thinned_until_they_fit() -> None:
    log = gamed()
    huge = replace(
        log,
        samples=lambda steps: [
            SampleText(step=s, prompt=f"p{n}" * 900, completion="x" * 10**6, score=math.nan)
            for s in (steps or log.sample_steps)
            for n in range(9)
        ],
    )
    (run,) = samples.browser([replace(found(), log=huge)])
    assert samples.size(run["steps"]) <= samples.MOST_CHARACTERS
    assert run["steps"][-1]["step"] == log.sample_steps[-1] and run["steps"][0]["samples"][0]["score"] is None


def test_samples_that_are_gone_leave_a_page() -> None:
    def gone(steps: object) -> list[SampleText]:
        raise RunError("deleted")

    assert samples.browser([replace(found(), log=replace(found().log, samples=gone))]) == []


# ── the file ───────────────────────────────────────────────────────────────────────────────────────────────


def test_hostile_text_stays_text_and_the_page_is_small(tmp_path: Path) -> None:
    hostile = replace(found(), path=Path(HOSTILE.replace("/", "")))
    for cases in ([hostile], [hostile, case(healthy()), case(without_kl())]):
        text = write_page(cases, tmp_path / "page.html").read_text()
        assert len(text.encode()) < MOST_BYTES
        assert "<script>alert" not in text and "<img" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
        assert "connect-src" not in text and "data-version" not in text.split("<body")[1].split(">")[0]


def test_the_command_of_a_suspect_checkpoint_is_on_the_page(tmp_path: Path) -> None:
    text = write_page([found()], tmp_path / "page.html").read_text()
    for step in (200, 250, 300):
        assert f'data-copy="kleash drift BASE outputs/checkpoint-150 outputs/checkpoint-{step}"' in text
    embedded = re.search(r'id="samples">(.*?)</script>', text, re.S)
    assert embedded is not None and json.loads(embedded[1])[0]["name"] == "outputs"


def test_a_foreign_log_has_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(FIXTURES / "trl-1.16" / "grpo")
    assert path == Path("grpo-report.html") and "TRL GRPO" in path.read_text()
    assert write(FIXTURES / "trl-1.16" / "grpo", tmp_path / "mine.html").is_file()
    with pytest.raises(RunError, match="there is no"):
        write(tmp_path / "nowhere")


def test_a_report_of_ours_has_what_the_monitor_says(tmp_path: Path) -> None:
    from tests.report.made import made_run

    run_dir = made_run(tmp_path / "run")
    said = section(run_dir)
    text = write(run_dir).read_text()
    assert 'id="findings"' in text and said["headline"].split("<")[0][:20] in text
    assert section(tmp_path)["headline"].startswith("The monitor cannot read this log")
