"""Preferences on file: every form says the same pairs, bad rows are refused or counted, noise is said."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from kleash.errors import UsageError
from kleash.training.pair_files import as_judged, as_pairs, read_judged, read_pairs

PAIR = {"prompt": "The soup", "chosen": " was good.", "rejected": " was cold."}
USER = {"role": "user", "content": "The soup?"}
GOOD, COLD = {"role": "assistant", "content": "Good."}, {"role": "assistant", "content": "Cold."}
ROWS = [PAIR, {"prompt": "A walk", "chosen": " in sun", "rejected": " in rain"}]


def written(form: str, where: Path) -> Path:
    if form == "jsonl":
        path = where / "pairs.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    elif form == "csv":
        path = where / "pairs.csv"
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(PAIR))
            table.writeheader()
            table.writerows(ROWS)
    elif form == "parquet":
        path = where / "pairs.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        path = where / "pairs"
        path.mkdir()
        for i, row in enumerate(ROWS):
            (path / f"{i}.jsonl").write_text(json.dumps(row))
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet", "directory"])
def test_every_format_holds_the_same_pairs(form: str, tmp_path: Path) -> None:
    pairs = read_pairs(written(form, tmp_path))
    assert pairs.prompts == ["The soup", "A walk"]
    assert pairs.answers == [(" was good.", " was cold."), (" in sun", " in rain")]
    assert (pairs.margins, pairs.columns, pairs.rows, pairs.said) == (None, {}, [0, 1], ())


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "chosen": [GOOD], "rejected": [COLD]},
        {"prompt": "The soup?", "chosen": [GOOD], "rejected": [COLD]},
        {"prompt": "The soup?", "chosen": [USER, GOOD], "rejected": [USER, COLD]},  # as UltraFeedback has it
        {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, COLD]},
        {"chosen": [USER, GOOD], "rejected": [USER, COLD]},  # TRL's implicit prompt
    ],
)
def test_conversations_of_every_form_are_one_pair(row: dict[str, Any]) -> None:
    pairs = as_pairs([row])
    assert (pairs.prompts, pairs.answers) == ([[USER]], [([GOOD], [COLD])])
    assert any("share" in text for text in pairs.said) == ("prompt" not in row)


def test_a_margin_is_a_number_and_other_columns_stay() -> None:
    pairs = as_pairs([PAIR | {"margin": 2, "topic": "food"}, ROWS[1] | {"margin": "0.5", "topic": "air"}])
    assert (pairs.margins, pairs.columns) == ([2.0, 0.5], {"topic": ["food", "air"]})
    with pytest.raises(UsageError, match="pair 0: the margin None is not a number"):
        as_pairs([PAIR | {"margin": None}])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rejected": "was good. "}, "the same"),
        ({"chosen": "  "}, "chosen is empty"),
        ({"rejected": ""}, "rejected is empty"),
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "The \ud83d"}, "the prompt has half a character .* at position 4"),
        ({"rejected": " was\ud83d"}, "rejected has half a character .* at position 4"),
        ({"chosen": None, "rejected": None}, "chosen is empty"),
        ({"rejected": [COLD]}, "text and the other a list"),
        ({"chosen": [USER, GOOD], "rejected": [{**USER, "content": "Tea?"}, COLD]}, "does not begin with the prompt"),
        ({"prompt": "The soup?", "chosen": [USER, GOOD], "rejected": [GOOD, COLD]}, "does not begin with the prompt"),
        ({"prompt": "The soup?", "chosen": [USER], "rejected": [COLD]}, "does not end with a message of the assistant"),
        ({"chosen": [{"role": "assistant"}], "rejected": [COLD]}, "a message must be"),
    ],
)
def test_a_pair_that_cannot_be_meant_is_refused_or_left_out(change: dict[str, Any], why: str) -> None:
    rows = [ROWS[1], PAIR | change, PAIR | change]
    with pytest.raises(UsageError, match=f"pair 1: .*{why}.*2 of 3 rows.*data.bad_rows"):
        as_pairs(rows)
    kept = as_pairs(rows, "drop")
    assert (kept.prompts, kept.rows) == (["A walk"], [0])
    assert "2 of 3 rows were left out, the first of them row 1: 2 ×" in kept.said[0]
    with pytest.raises(UsageError, match=why):
        as_pairs(rows[1:], "drop")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"chosen": [USER, GOOD], "rejected": [{**USER, "content": "Tea?"}, COLD]}, "prompts of chosen and rejected"),
        ({"chosen": [GOOD], "rejected": [COLD]}, "there is no prompt"),
        ({"chosen": "a", "rejected": "b"}, "no column prompt, and chosen is text"),
    ],
)
def test_prompts_that_are_not_shared_are_refused(row: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_pairs([row])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "no rows"),
        (["text"], "row 0 must be a table row"),
        ([{"prompt": "a", "chosen": "b"}], "row 0 has no column 'rejected'"),
        ([PAIR, PAIR | {"topic": "food"}], "they must agree"),
        ({"train": [PAIR]}, "columns or splits"),
    ],
)
def test_what_is_no_table_of_pairs_is_refused(rows: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        as_pairs(rows)


def test_pairs_turned_round_are_counted_as_noise() -> None:
    turned = PAIR | {"chosen": PAIR["rejected"], "rejected": PAIR["chosen"]}
    said = as_pairs([ROWS[1], PAIR, turned, PAIR]).said
    assert said[0] == "1 pairs stand in the data more than once"
    assert "label noise: 1 pairs" in said[1]
    assert "pair 1 of those read" in said[1]
    assert "at most 75%" in said[1]
    assert len(said) == 2


def test_judged_answers_and_their_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion,label,topic\nThe soup, was good.,True,food\nThe soup, was cold.,false,food\n")
    judged = read_judged(path)
    assert (judged.prompts, judged.labels) == (["The soup"] * 2, [True, False])
    assert judged.answers == [(" was good.",), (" was cold.",)]
    assert judged.columns == {"topic": ["food", "food"]}
    assert as_judged([{"prompt": "a", "completion": "b", "label": n} for n in (1, 0)]).labels == [True, False]


def test_pairs_are_a_wanted_and_an_unwanted_row_each() -> None:
    judged = as_judged([row | {"topic": i} for i, row in enumerate(ROWS)])
    assert judged.prompts == ["The soup", "The soup", "A walk", "A walk"]
    assert judged.labels == [True, False, True, False]
    assert (judged.columns, judged.rows) == ({"topic": [0, 0, 1, 1]}, [0, 0, 1, 1])
    assert "these are pairs" in judged.said[-1]


def test_one_class_and_a_label_that_is_none_are_refused() -> None:
    row = {"prompt": "a", "completion": "b", "label": True}
    with pytest.raises(UsageError, match="all 2 rows have the label true"):
        as_judged([row, row])
    with pytest.raises(UsageError, match="row 1: the label 'good' is neither true nor false"):
        as_judged([row, row | {"label": "good"}])
    with pytest.raises(UsageError, match="row 0: completion is empty"):
        as_judged([row | {"completion": ""}])


def test_an_answer_with_both_labels_is_counted_as_noise() -> None:
    row = {"prompt": "a", "completion": "b", "label": True}
    said = as_judged([row, row | {"label": False}, row, {"prompt": "a", "completion": "c", "label": False}]).said
    assert said == ("label noise: 1 rows have the answer of another row and the opposite label",)
