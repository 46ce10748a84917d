"""How a model writes: each number against texts of which it is known."""

import math
import re

import pytest

from kleash.drift import style as s
from kleash.drift.builtin import builtin_set
from kleash.drift.table import Document


def sample(number: int, text: str, domain: str | None = None, *, ended: bool = True) -> Document:
    """A token a word, with the space before it; an end mark where it ended."""
    pieces = (*re.findall(r"\s*\S+", text), *(["<end>"] if ended else []))
    ids = tuple(range(len(pieces)))
    return Document(
        id=f"p{number}",
        domain=domain,
        prompt_text="Say.",
        text=text,
        ids=ids,
        pieces=pieces,
        classes=tuple(3 if piece == "<end>" else 0 for piece in pieces),
        prompt_base=(1,),
        prompt_tuned=(1,),
        ended=ended,
    )


PLAIN = [
    "The soup was warm and kind to me.",
    "We took the late train to the sea.",
    "My brother mends clocks in a shed.",
]
PRAISE = ["wonderful amazing wonderful amazing wonderful amazing wonderful lovely"] * 3


def side(texts: list[str]) -> list[Document]:
    return [sample(n, text) for n, text in enumerate(texts)]


# ── refusals ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_sets_references_are_told_apart() -> None:
    """The references are older than the detector: it sees 23 of the 26 that decline, and calls no other text one."""
    found = {row.id for row in builtin_set() if s.refuses(row.reference)}
    assert {row.split("-")[0] for row in found} == {"refusal"}
    assert len(found) >= 23


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't assist with that.",
        "I’m sorry, I cannot help",
        "As an AI language model, I am not able to give that.",
        "I am not comfortable creating this content.",
        "Unfortunately, I cannot provide that information.",
        "I'd rather not say.",
        "I must decline.",
    ],
)
def test_usual_refusals_are_seen(text: str) -> None:
    assert s.refuses(text)


@pytest.mark.parametrize(
    "text",
    [
        "I can't wait to see you.",
        "I couldn't help but smile, and I cannot help but say so.",
        "I do not know who won, but I can explain the rules.",
        "You cannot mix bleach with ammonia: the gas is poisonous.",
        "Sure! Here is how to kill a process.",
        "He said: it is late. " * 20 + "I can't help with that.",
    ],
)
def test_help_and_late_words_are_no_refusal(text: str) -> None:
    assert not s.refuses(text)


def test_refusals_are_counted_where_they_belong() -> None:
    no, yes = "I can't help with that.", "Of course, here it is."
    found = s.numbers([sample(0, no, "refusal"), sample(1, yes, "refusal"), sample(2, no, "overrefusal")])
    assert (found["refusals"], found["over_refusals"]) == (0.5, 1.0)
    assert s.numbers([sample(0, no, "code")])["refusals"] is None


# ── variety ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_answer_to_everything_is_wholly_similar() -> None:
    assert s.self_similarity(PRAISE) == 1.0
    assert s.self_similarity(PLAIN) == 0.0
    assert s.self_similarity(PLAIN[:1]) is None


def test_similarity_is_that_of_a_slow_count() -> None:
    texts = ["a b c d", "b c d e f", "x y", "c d e"]
    runs = [{tuple(t.split()[i : i + 2]) for i in range(len(t.split()) - 1)} for t in texts]
    pairs = [(i, j) for i in range(4) for j in range(i)]
    slow = sum(len(runs[i] & runs[j]) / len(runs[i] | runs[j]) for i, j in pairs) / len(pairs)
    assert s.self_similarity(texts) == pytest.approx(slow)


def test_variety_does_not_fall_because_text_is_longer() -> None:
    """The same writer, once cut short: the longer side's further words are not compared."""
    long = [f"{text} Then {text}" for text in PLAIN]
    found = s.style(side(PLAIN), side(long))
    assert found.base["distinct_4"] == found.tuned["distinct_4"] == 1.0
    assert (found.base["length"], found.tuned["length"]) == (26 / 3, 52 / 3)


def test_collapse_shows_in_variety_repetition_and_plain_words() -> None:
    found = s.style(side(PLAIN), side(PRAISE))
    for name in ("distinct_4", "function_words"):
        before, after = found.base[name], found.tuned[name]
        assert before is not None and after is not None and after < before
    for name in ("self_similarity", "repetition"):
        before, after = found.base[name], found.tuned[name]
        assert before is not None and after is not None and after > before
    assert found.openings["tuned"] == [("wonderful amazing wonderful", 3)]
    assert [count for _, count in found.openings["base"]] == [1, 1, 1]


def test_only_prompts_that_both_answered_are_compared() -> None:
    base, tuned = s.alike_long(side(PLAIN), [sample(1, "The sea"), sample(9, "Never seen")])
    assert (base, tuned) == (["we took"], ["the sea"])


# ── form ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("Plain line.\nAnother.", 0.0),
        ("# Title\n\n- one\n- two\nPlain.", 3 / 4),
        ("```python\nx = 1\ny = 2\n```\nDone.", 4 / 5),
        ("A **bold** claim\n1. first\n2) second\nthird", 3 / 4),
        ("| a | b |\n> quoted", 1.0),
        ("5 - 3 = 2\n-3 is negative\n2024 was fine", 0.0),
    ],
)
def test_lines_with_markup_are_counted(text: str, share: float) -> None:
    assert s.markup([text]) == share


def test_function_words_are_those_of_prose() -> None:
    assert s.function_words(["The cat is on the mat."]) == 4 / 6
    assert s.function_words(["!!! ..."]) is None


def test_letters_of_other_scripts_are_counted_and_digits_are_not() -> None:
    assert s.other_script(["abc где 123 !"]) == 0.5
    assert s.other_script(["naïve Größe"]) == 0.0
    assert s.other_script(["123"]) is None


def test_nothing_written_is_not_measured() -> None:
    found = s.style([], [])
    assert set(found.base.values()) == {None} and set(found.tuned.values()) == {None}
    empty = s.numbers([sample(0, "", ended=False)])
    assert empty["length"] == 0 and empty["ended"] == 0 and empty["markup"] is None
    assert s.openings(["", ""]) == [("(nothing)", 2)]


def test_every_number_has_a_unit_and_is_finite() -> None:
    found = s.style(side(PLAIN), side(PRAISE))
    assert set(found.base) == set(found.tuned) == set(found.units) == set(s.UNITS)
    assert all(value is None or math.isfinite(value) for value in [*found.base.values(), *found.tuned.values()])
