"""Files that appear whole or not at all."""

import threading
from pathlib import Path

import pytest

from kleash.whole import whole, write_whole


def test_an_error_leaves_the_earlier_file_and_no_draft(tmp_path: Path) -> None:
    file = write_whole(tmp_path / "a.json", "earlier")
    with pytest.raises(KeyboardInterrupt), whole(file) as draft:
        draft.write_text("half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"] and file.read_text() == "earlier"


def test_two_writers_at_once_take_nothing_from_each_other(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with whole(file) as first:
        first.write_text("first, ")
        write_whole(file, "second")
        assert file.read_text() == "second"
        with first.open("a") as more:
            more.write("and whole")
    assert file.read_text() == "first, and whole"
    assert list(tmp_path.iterdir()) == [file]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    """Of many writers of different long texts, what can be read is always one of them."""
    file, texts = tmp_path / "a.txt", [letter * 200_000 for letter in "abcd"]
    write_whole(file, texts[0])
    writers = [threading.Thread(target=lambda t=t: [write_whole(file, t) for _ in range(20)]) for t in texts]
    for writer in writers:
        writer.start()
    seen = {file.read_text() for _ in range(50)}
    for writer in writers:
        writer.join()
    assert seen <= set(texts) and list(tmp_path.iterdir()) == [file]
