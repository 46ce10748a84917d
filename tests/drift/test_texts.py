"""From files to scored tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.drift.pairs import pair_of
from tests.models import build
from tests.models.small_tokenizers import byte_fallback, byte_level

from kleash.drift.builtin import DOMAINS
from kleash.drift.scored import pieces_of
from kleash.drift.sources import Pair
from kleash.drift.table import CLASSES
from kleash.drift.texts import Text, builtin_texts, prepared, read_texts
from kleash.errors import UsageError


def file(directory: Path, name: str, *rows: Any) -> Path:
    path = directory / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def pair() -> Pair:
    model = build.model()
    return pair_of(model, model)


def test_paragraphs_of_a_text_file_are_documents(tmp_path: Path, pair: Pair) -> None:
    texts = read_texts(file(tmp_path, "a.txt", "t5 t6", "t7", "", "", "t8 t9"))
    assert [(text.id, text.prompt, text.answer) for text in texts] == [("a-0", "", "t5 t6\nt7"), ("a-1", "", "t8 t9")]
    first, second = prepared(texts, pair)
    assert (first.prompt_base, first.ids) == ((5,), (6, 7))
    assert (second.prompt_base, second.ids, second.pieces) == ((8,), (9,), (" t9",))


def test_rows_of_every_kind(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    texts = read_texts(
        file(
            tmp_path,
            "rows.jsonl",
            {"text": "plain", "domain": "d", "id": 7},
            {"prompt": "ask", "completion": "say"},
            {"prompt": turns[:1], "completion": turns[1:]},
            {"messages": turns},
            {"messages": turns[:1]},
        )
    )
    assert [(t.id, t.domain, t.prompt, t.answer) for t in texts] == [
        ("7", "d", "", "plain"),
        ("rows-1", None, "ask", "say"),
        ("rows-2", None, (("user", "q"),), "a"),
        ("rows-3", None, (("user", "q"),), "a"),
        ("rows-4", None, (("user", "q"),), ""),
    ]
    assert texts[2].shown == "q"
    assert (
        Text(id="x", domain=None, prompt=(("user", "q"), ("assistant", "a")), answer="").shown
        == "user: q\nassistant: a"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "is empty"),
        ([{"question": "x"}], 'row 0 has neither "text"'),
        ([{"prompt": "  ", "completion": "x"}], "row 0 has neither"),
        ([{"messages": [{"role": "user", "content": 3}]}], "row 0 has neither"),
        ([["x"]], "must be an object"),
        ([{"id": 1, "text": "a"}, {"id": 1, "text": "b"}], "an id stands twice"),
    ],
)
def test_files_that_cannot_be_meant(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_texts(file(tmp_path, "x.jsonl", *rows))
    with pytest.raises(UsageError, match="cannot be read"):
        read_texts(tmp_path / "none.txt")


def test_the_builtin_set_has_every_domain() -> None:
    assert {text.domain for text in builtin_texts()} == set(DOMAINS)
    assert all(text.answer for text in builtin_texts())


def text(number: int, domain: str, words: int) -> Text:
    return Text(id=f"{domain}{number}", domain=domain, prompt="t4 t5 ", answer=" ".join(["t6"] * words))


def test_a_cap_takes_whole_documents_spread_over_domains(pair: Pair) -> None:
    texts = [text(n, domain, 4) for domain in "abc" for n in range(3)]
    found = prepared(texts, pair, tokens=22)
    assert [document.id for document in found] == ["a0", "b0", "c0", "a1"]  # five tokens each, with the end token
    assert [len(document.ids) for document in found] == [5] * 4
    assert [document.id for document in prepared(texts, pair, tokens=1)] == ["a0"]
    assert len(prepared(texts, pair)) == 9


def test_a_text_longer_than_the_context_is_cut_and_counted(pair: Pair) -> None:
    (document,) = prepared([text(0, "a", 100)], pair)
    assert pair.reading.context == 64
    assert (len(document.prompt_base), len(document.ids), document.cut) == (2, 62, 39)
    assert not document.ended


def test_nothing_to_score(pair: Pair) -> None:
    with pytest.raises(UsageError, match="none of these prompts has an answer"):
        prepared([Text(id="a", domain=None, prompt="t5", answer="")], pair)
    with pytest.raises(UsageError, match="nothing is left to score"):
        prepared([Text(id="a", domain=None, prompt="", answer="t5")], pair)


def test_classes_of_tokens(pair: Pair) -> None:
    (document,) = prepared([Text(id="a", domain=None, prompt="t4", answer=" t5")], pair)
    assert [CLASSES[c] for c in document.classes] == ["content", "eos"]
    assert document.text == "".join(document.pieces) == " t5 t2"


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_pieces_put_together_are_the_text(make: Any) -> None:
    tokenizer = make()
    before, after = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in ("the cat", " at the café, né"))
    pieces = pieces_of(after, before, tokenizer)
    assert len(pieces) == len(after)
    whole = tokenizer.decode(before + after, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    begun = tokenizer.decode(before, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert "".join(pieces) == whole[len(begun) :]
    cut = pieces_of(after[:-1], before, tokenizer)  # inside the last character
    assert cut[-1] == "\ufffd"
    assert "".join(cut[:-1]) == "".join(pieces[:-1])
