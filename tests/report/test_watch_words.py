"""What is said of a watched log: every line against the log it is made from."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.report.logs import case, found, gamed, healthy, without_kl

from kleash.report.watch import Case, words
from kleash.report.watch.price import at_rows, price_of
from kleash.report.watch.terminal import WIDTH, block
from kleash.report.watch.told import checkpoints, record
from kleash.runlog.findings import Finding
from kleash.runlog.price import WINDOW, slope
from kleash.runlog.series import KLTag


def said(of: Case, label: str) -> str:
    return " ".join(line.text for line in words.lines(of) if line.label == label)


@pytest.fixture(scope="module")
def bad() -> Case:
    return found()


def test_the_headline_says_what_since_when_and_how_sure(bad: Case) -> None:
    assert words.headline(bad).text.startswith("GAMING THE REWARD since step 1")
    assert bad.said.since is not None and abs(bad.said.since - 150) <= 30
    assert words.headline(bad).text.endswith("independent signs, sure")
    assert bad.exit_code == 1


def test_healthy_says_how_much_could_be_judged() -> None:
    good = case(healthy())
    judged, missing = len(good.said.evaluated), len(good.said.not_evaluated)
    assert words.headline(good).text.startswith(f"HEALTHY as far as {judged} of {judged + missing} rules can tell")
    assert good.exit_code == 0 and said(good, "unknown").startswith(f"{missing} rules not evaluated")


def test_nothing_to_judge_by_is_neither_good_nor_bad() -> None:
    log = replace(healthy(), columns={}, step=np.array([], dtype=np.int64))
    assert case(log).exit_code == 2
    assert words.headline(case(log)).text.startswith("NOTHING TO JUDGE BY")


def test_a_kl_is_told_with_its_meaning_unit_and_state() -> None:
    tag = KLTag(meaning="kl_ref", key="kl", estimator="k3", unit="nats/token", clamp=10.0, note="own token only")
    assert words.kl_text(tag) == "`kl` = drift from the reference, k3, per token, cut at 10 nats (own token only)"
    assert "that is not measured" in words.kl_text(replace(tag, state="logged as 0"))
    assert "never a number" in words.kl_text(replace(tag, state="NaN"))
    assert "not drift" in words.kl_text(replace(tag, meaning="kl_old"))
    assert said(case(without_kl()), "") == "no KL to a reference: beta is 0, so TRL measures none"


def test_a_course_is_the_means_of_both_ends() -> None:
    assert words.course(np.linspace(0, 99, 100)) == "4.5 → 94.5"
    assert words.course(np.array([2.0])) == "2"
    assert words.course(np.array([])) is None and words.course(None) is None


def test_a_sparkline_is_monotone_and_flat_where_the_series_is() -> None:
    drawn = words.sparkline(np.arange(24.0))
    assert drawn == "".join(sorted(drawn)) and drawn[0] == "▁" and drawn[-1] == "█" and len(drawn) == 12
    assert words.sparkline(np.ones(5)) == "▁▁▁▁▁"


def test_the_record_says_how_often_verdicts_are_right(bad: Case) -> None:
    told = said(bad, "record")
    assert "5 of 500 simulated healthy runs got a false alarm (95 %: at most 2.3 %), 45 of 50" in told
    assert record(bad)["record"]["found"] == [45, 50]


def test_the_price_before_and_after_the_change(bad: Case) -> None:
    log = bad.log
    assert price_of(log, 150) and "before step 150" in str(price_of(log, 150))
    assert price_of(log, None) and "over the log" in str(price_of(log, None))
    assert price_of(without_kl(), None) is None
    reward, kl = log.columns["reward"], log.columns["kl_ref_sequence"]
    assert at_rows(log, [5, 99]) == [None, slope(kl[100 - WINDOW : 100], reward[100 - WINDOW : 100])]


def test_checkpoints_to_keep_and_to_distrust_and_one_command(bad: Case) -> None:
    assert said(bad, "keep") == f"outputs/checkpoint-{bad.said.since // 50 * 50} (the last clean)"
    assert said(bad, "distrust").endswith("… checkpoint-300")
    command = next(line for line in words.lines(bad) if line.command)
    assert command.text == "kleash drift BASE outputs/checkpoint-150 outputs/checkpoint-200"


def test_a_command_is_safe_to_paste() -> None:
    log = replace(gamed(Path("my runs; rm -rf x")), config={"model": {"policy": "./my sft"}})
    assert words.drift_command(case(log)) == (
        "kleash drift './my sft' 'my runs; rm -rf x/checkpoint-150' 'my runs; rm -rf x/checkpoint-200'"
    )


def test_the_block_fits_and_control_codes_do_not_pass(bad: Case) -> None:
    finding = Finding(
        rule="x", severity="alarm", headline="BAD \x1b[2J", what="\x1b]0;owned\x07 wrote", alarm_step=3, since=2,
        before=["a\x1b[31mb"], after=["c\rd"],
    )  # fmt: skip
    hostile = replace(bad, said=replace(bad.said, headline="BAD \x1b[2J", findings=(finding,)))
    for one in (bad, hostile):
        text = block(one).plain
        assert all(character.isprintable() or character == "\n" for character in text)
        assert all(len(line) <= WIDTH for line in text.splitlines())
    assert block(bad).plain.splitlines()[0].endswith("exit 1")


def test_every_finding_has_a_line_but_the_one_in_the_headline(bad: Case) -> None:
    told = [line for line in words.lines(bad) if line.label in words.TONES]
    assert len(told) == len(bad.said.findings) - 1


def test_what_was_missing_is_counted_and_the_json_has_all(bad: Case) -> None:
    told = record(bad)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["exit"] == 1 and told["since"] == bad.said.since
    assert len(told["not_evaluated"]) == len(bad.said.not_evaluated)
    assert sum(map(len, words.by_need(bad).values())) == len(bad.said.not_evaluated)
    assert [one["rule"] for one in told["findings"]] == [one.rule for one in bad.said.findings]
    assert told["clean"] == "outputs/checkpoint-150"


def test_a_checkpoint_has_the_kl_of_the_row_before_it(bad: Case) -> None:
    kl = bad.log.columns["kl_ref_sequence"]
    assert checkpoints(bad)[1] == (100, "outputs/checkpoint-100", kl[99])
    assert checkpoints(replace(bad, log=replace(bad.log, columns={})))[1][2] is None
