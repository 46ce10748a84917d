"""`kleash drift` where something is broken: one clear sentence, or a right result."""

import os
import re

import pytest
from tests.test_cli import WRONG, sentence

import kleash
from kleash.drift import api, files
from kleash.errors import UsageError

TINY = "kleash:tiny"
LESS = ("--tokens", "300", "--samples", "0", "--no-tasks")


# ── where nothing can be written ────────────────────────────────────────────────────────────────────────────

PLACES = {
    "a file": ("file", "file is not a directory"),
    "below a file": ("file/x", "Not a directory"),
    "a dangling link": ("link", "link is not a directory"),
    "a name too long": ("a" * 300, "File name too long"),
    "a directory where a file goes": ("taken", "drift.json is a directory"),
}


@pytest.mark.parametrize("case", PLACES)
def test_where_nothing_can_be_written_is_said_before_a_model_is_opened(kleash_, tmp_path, monkeypatch, case) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/nowhere/at/all")
    (tmp_path / "taken" / "drift.json").mkdir(parents=True)
    monkeypatch.setattr(api, "audit", lambda *_: pytest.fail("it was measured"))
    name, why = PLACES[case]
    sentence(kleash_(TINY, TINY, out=tmp_path / name), WRONG, "cannot write to", why)
    with pytest.raises(UsageError, match=re.escape(why)):
        kleash.audit(TINY, TINY, out=tmp_path / name)


def test_a_directory_without_permission_is_said_and_one_to_be_made_is_not_made(tmp_path, monkeypatch) -> None:
    files.check_place(tmp_path / "new" / "deep")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(UsageError, match=f"{tmp_path} may not be written to"):
        files.check_place(tmp_path / "new" / "deep")


def test_of_several_each_place_and_the_rankings_are_looked_at(kleash_, tmp_path, moved) -> None:
    (tmp_path / "out" / "ranking.json").mkdir(parents=True)
    sentence(kleash_(TINY, TINY, moved), WRONG, "ranking.json is a directory")
    (tmp_path / "out" / "ranking.json").rmdir()
    (tmp_path / "out" / "kleash-tiny").touch()
    sentence(kleash_(TINY, TINY, moved), WRONG, "kleash-tiny is not a directory")
