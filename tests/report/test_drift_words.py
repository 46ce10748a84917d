"""What an audit says on a terminal, in a model card, in a CI summary, on a badge: the same numbers, as plain text."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.audits import (
    EVIL,
    GATES,
    JUDGEMENT,
    STEERING,
    audit,
    distribution,
    interval,
    off_task,
    score,
    side,
    tail,
    unchanged,
)

from kleash.drift import records as r
from kleash.report.drift import markdown, words
from kleash.report.drift.badge import badge
from kleash.report.drift.terminal import block


def line(text: str, begins: str) -> str:
    return next(found for found in text.splitlines() if found.strip().startswith(begins))


# ── the terminal ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_comes_first_then_what_it_rests_on() -> None:
    lines = block(audit(), [Path("drift.html"), Path("card.md")], "try runs/polite@step-120").plain.splitlines()
    assert lines[0].startswith("PARTY TRICK   large drift off the task")
    assert lines[0].endswith("2 gates failed (exit 1)")
    assert "4f1c4f1c…" in lines[1] and "LoRA r16" in lines[1] and "41,208 tokens, set builtin-1 #c07ec07e" in lines[1]
    assert lines[-2] == "wrote drift.html  card.md    try runs/polite@step-120"
    assert lines[-1] == "again: kleash drift kleash:smollm2 runs/polite/best --seed 0"


def test_both_directions_stand_under_their_heading_with_their_intervals() -> None:
    text = block(audit()).plain
    heading, off = line(text, "KL nats/token"), line(text, "off task")
    assert off[heading.index("base||tuned") :].startswith("0.094 [0.085, 0.103]")
    assert off[heading.index("tuned||base") :].startswith("0.101 [0.091, 0.111]")
    assert off[heading.index("same top-1") :] == "89 %"
    own = line(text, "its own words")
    assert own[heading.index("base||tuned") :].startswith("not measured")
    assert "96 samples" in own


def test_every_score_is_there_with_its_change_and_what_was_lost_in_capitals() -> None:
    text = block(audit()).plain
    assert "0.41   0.78    +0.37 [+0.30, +0.44]   gained" in line(text, "polite (yours)")
    assert line(text, "formal (sibling)").endswith("no gain")
    assert line(text, "arithmetic").endswith("LOST")
    assert line(text, "unclear") == " unclear   sums, lookup" and line(text, "no gain") == " no gain   copy"


def test_what_is_not_measured_is_neither_0_nor_there() -> None:
    text = block(unchanged()).plain
    assert "Scores" not in text and "gates" not in text and "yardstick" not in text and "style" not in text
    assert text.startswith("UNCHANGED   the drift is under the noise floor\n")


def test_an_interval_that_cannot_be_had_says_why() -> None:
    few = interval(0.2, low=None, high=None, clusters=12, warning="too few documents (12)")
    text = block(
        audit(distributions=[replace(distribution("off task", None, None), forward=replace(tail(0.2), mean=few))])
    ).plain
    assert "0.200 [too few documents (12)]" in line(text, "off task")
    doubtful = interval(0.2, clusters=40, warning="too few documents: covers 90 %")
    text = block(
        audit(distributions=[replace(distribution("off task", None, None), forward=replace(tail(0.2), mean=doubtful))])
    ).plain
    assert "0.200 [0.180, 0.220] *" in line(text, "off task")
    assert "* off task: too few documents: covers 90 %" in text


@pytest.mark.parametrize(("kind", "sign"), [("lower bound", "≥ 0.061"), ("sampled", "≈ 0.061")])
def test_a_bound_and_an_estimate_never_look_exact(kind: r.Kind, sign: str) -> None:
    made = audit(distributions=[distribution("off task", 0.061, None, kind=kind)])
    for text in (block(made).plain, markdown.card(made), badge(made)):
        assert sign in text and "exact" not in text


def test_beside_a_bound_stands_the_estimate_from_samples() -> None:
    own = distribution("its own words", None, 0.06, kind="lower bound", sampled=interval(0.09))
    text = block(audit(distributions=[own])).plain
    assert "≥ 0.060 [0.054, 0.066]" in text
    assert "sampled estimate, unbiased: ≈ 0.090 [0.081, 0.099]" in text


def test_other_tokenizers_are_bits_per_byte_and_no_kl() -> None:
    bits = distribution("off task", None, None, bits_per_byte=(0.912, 0.957), same_top1=None)
    text = block(audit(distributions=[bits])).plain
    assert "bits per byte 0.912 -> 0.957 (other tokenizer: no KL)" in text
    assert "nats/token" not in text.replace("set builtin-1", "")


def test_tokens_left_out_and_a_partial_audit_are_said() -> None:
    made = audit(partial="Ctrl-C after 40 of 312 texts", distributions=[off_task(non_finite=3, cut=1, new_mass=0.02)])
    text = block(made).plain
    assert text.splitlines()[1] == "PARTIAL: Ctrl-C after 40 of 312 texts"
    assert "off task: 3 tokens not finite, left out of every mean" in text
    assert "off task: 1 text cut at the context's end" in text
    assert "off task: 2.0 % of the tuned model's probability is on tokens new to it" in text


def test_names_that_would_steer_the_terminal_do_not() -> None:
    made = audit(tuned=side(STEERING), scores=[score(STEERING, "task", 0.1, 0.2, "gained")], command=f"x {STEERING}")
    text = block(made).plain
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "txet" in text


# ── exit codes ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("passed", "code", "told"),
    [
        ([], 0, ""),
        ([True, True], 0, "2 gates passed (exit 0)"),
        ([True, False], 1, "1 gate failed (exit 1)"),
        ([False, None], 2, "1 gate failed, 1 not measured (exit 2)"),
    ],
)
def test_only_gates_fail_an_audit(passed: list[bool | None], code: int, told: str) -> None:
    made = audit(gates=[r.Gate(text="a", passed=each) for each in passed])
    assert (words.exit_code(made), words.gates_line(made)) == (code, told)


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (2.34e-8, "2.3e-8"),
        (0.00142, "0.0014"),
        (0.0123, "0.012"),
        (-0.25, "-0.250"),
        (3.14159, "3.14"),
        (213.61, "213.6"),
    ],
)
def test_nats_are_written_by_their_size(value: float | None, written: str) -> None:
    assert words.nats(value) == written


def test_nearly_all_is_not_all() -> None:
    assert [words.share(each) for each in (0.0, 0.031, 0.81, 0.993, 0.99999, 1.0)] == [
        "0 %",
        "3.1 %",
        "81 %",
        "99.3 %",
        "> 99.9 %",
        "100 %",
    ]


def test_yardsticks_compare_with_the_kl_that_is_quoted() -> None:
    assert "about the base in 4 bits (0.090)" in words.yardsticks(audit())
    far = audit(yardsticks=r.Yardsticks(four_bit=0.02, four_bit_scheme="Q4_0"))
    assert words.yardsticks(far) == ["4.7 × the base in 4 bits (0.020)"]
    same = audit(yardsticks=r.Yardsticks(times_floor=1.04e9), floor=r.Floor(value=3.6e-10, by={}))
    assert words.yardsticks(same) == ["over 1,000 × the noise floor (3.6e-10)"]
    already = audit(yardsticks=r.Yardsticks(four_bit_scheme="already 4-bit"))
    assert words.yardsticks(already) == ["4 bits: already 4-bit"]


def test_the_terminal_says_the_first_sentence_of_what_is_predicted() -> None:
    found = line(block(audit()).plain, "forgetting")
    assert found == " forgetting  The forward KL on the task's inputs is 0.212 nats per token."


# ── card, summary, badge ────────────────────────────────────────────────────────────────────────────────────


def test_the_card_has_numbers_conditions_and_the_command() -> None:
    card = markdown.card(audit())
    assert "**Party trick**: large drift off the task" in card
    assert "| off task, 312 texts | 0.094 [0.085, 0.103] | 0.101 [0.091, 0.111] | 89 % |" in card
    assert "| arithmetic (other) | 0.220 | 0.090 | -0.13 [-0.16, -0.10] | LOST |" in card
    assert "```\nkleash drift kleash:smollm2 runs/polite/best --seed 0\n```" in card
    assert "on 2026-12-03" in card and "builtin-1 \\#c07ec07e" in card


def test_no_name_becomes_markup_or_another_column() -> None:
    hostile = "a|b](http://x) <img src=x> `c` *d*\n| e |"
    made = audit(scores=[score(hostile, "task", 0.1, 0.2, "gained")], command="a ``` b")
    row = next(found for found in markdown.card(made).splitlines() if found.startswith("| a"))
    assert row.replace("\\|", "").count("|") == 6
    assert "\\<img" in row and "\\](" in row and "\\`c\\`" in row
    assert "````\na ``` b\n````" in markdown.card(made)


def test_the_summary_begins_with_the_gates() -> None:
    lines = markdown.summary(audit()).splitlines()
    assert lines[0] == "### kleash drift: 2 gates failed (exit 1)"
    assert lines[2] == "- **FAIL** off-task KL upper bound 0.109 \\> 0.05"
    assert markdown.summary(unchanged()).startswith("## Drift")


def test_the_badge_carries_set_direction_value_and_date() -> None:
    root = ET.fromstring(badge(audit()))
    name = root.attrib["aria-label"]
    assert name.startswith("kleash drift: party trick, ")
    assert "off task 0.094 [0.085, 0.103] nats/token base‖tuned · builtin-1 · 2026-12-03" in name
    texts = root.findall(".//{*}text")
    assert sum(float(t.attrib["textLength"]) for t in texts) < float(root.attrib["width"])


def test_the_badge_of_a_partial_or_empty_audit_says_so() -> None:
    assert " · partial · " in badge(audit(partial="Ctrl-C"))
    assert "no KL was measured" in badge(audit(distributions=[]))
    own = audit(distributions=[distribution("on task", 0.2, 0.2, source=EVIL)])
    root = ET.fromstring(badge(own))
    assert len(list(root.iter())) == len(list(ET.fromstring(badge(audit())).iter()))


def test_because_and_gates_are_quoted_as_they_are() -> None:
    text = block(audit(judgement=replace(JUDGEMENT, verdict="damaged", because="arithmetic fell"), gates=GATES)).plain
    assert text.startswith("DAMAGED   arithmetic fell   ")
    assert "FAIL off-task KL upper bound 0.109 > 0.05" in text and "pass same top-1" in text
