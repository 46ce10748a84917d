"""The columns of an audit."""

from typing import Any

import numpy as np

from kleash.drift.table import COLUMNS, ByteTable, Document, TokenTable, index_rows


def document(name: str, ids: tuple[int, ...], **more: Any) -> Document:
    pieces = tuple(f"{i}é" for i in ids)
    given: dict[str, Any] = {
        "prompt_text": "p",
        "classes": (0,) * len(ids),
        "prompt_base": (1,),
        "prompt_tuned": (1,),
    } | more
    return Document(id=name, domain=None, text="".join(pieces), ids=ids, pieces=pieces, **given)


def table(documents: tuple[Document, ...], **more: Any) -> TokenTable:
    number, position, token, classes = index_rows(documents)
    rest: dict[str, Any] = (
        dict.fromkeys(COLUMNS[4:]) | dict.fromkeys(("logp_base", "logp_tuned"), np.zeros(len(number))) | more
    )
    return TokenTable(
        kind="exact", documents=documents, document=number, position=position, token=token, token_class=classes, **rest
    )


def test_rows_go_document_after_document() -> None:
    number, position, token, classes = index_rows([document("a", (7, 8, 9)), document("b", (5,), classes=(3,))])
    assert number.tolist() == [0, 0, 0, 1]
    assert position.tolist() == [0, 1, 2, 0]
    assert token.tolist() == [7, 8, 9, 5]
    assert classes.tolist() == [0, 0, 0, 3]
    assert all(len(column) == 0 for column in index_rows([]))


def test_a_token_with_any_divergence_not_finite_is_counted_once() -> None:
    nan = np.nan
    found = table(
        (document("a", (7, 8, 9)),),
        forward=np.array([nan, 0.1, nan]),
        reverse=np.array([0.2, 0.1, nan]),
        jensen_shannon=None,
    )
    assert found.non_finite == 2


def test_rows_are_chosen_in_every_column() -> None:
    both = (document("a", (7, 8, 9), cut=2), document("b", (5,)))
    found = table(both, forward=np.array([1.0, 2, 3, 4]), rank=None).only(np.array([True, False, False, True]))
    assert (found.document.tolist(), found.token.tolist()) == ([0, 1], [7, 5])
    assert found.forward is not None
    assert found.forward.tolist() == [1, 4]
    assert found.rank is None
    assert found.cut == 1
    assert len(found) == 2


def test_bits_a_byte_leave_out_what_is_not_finite_on_both_sides() -> None:
    found = ByteTable(
        ids=("a", "b"),
        domains=(None, None),
        n_bytes=np.array([document("a", (7, 8)).n_bytes, 100]),
        bits_base=np.array([12.0, 5.0]),
        bits_tuned=np.array([6.0, np.nan]),
    )
    assert found.bits_per_byte == (2.0, 1.0)
