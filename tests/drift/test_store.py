"""drift.json: what is written is what is read, and nothing is read that this version does not know."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.drift.tables import documents, spread, table
from tests.report.audits import audit, part, unchanged

from kleash.drift import store
from kleash.drift.distribution import distribution
from kleash.drift.records import AUDIT_SCHEMA, Interval
from kleash.errors import RunError, UsageError

OWNERS = documents(60)


def plain() -> dict[str, object]:
    """An audit without the lone surrogates of the tests of pages."""
    return {"scores": audit().scores[:3], "pairs": [], "style": None}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    measured = distribution(table(spread(OWNERS), OWNERS), name="off task", source="builtin-1")
    for made in (audit(distributions=[measured], **plain()), unchanged()):
        path = store.write(made, tmp_path / "drift" / "drift.json")
        assert store.read(path) == made
    assert [one.name for one in path.parent.iterdir()] == ["drift.json"], "no half-written file is left"


def test_the_file_says_its_schema_and_is_strict_json(tmp_path: Path) -> None:
    path = store.write(unchanged(), tmp_path / "drift.json")
    tree = json.loads(path.read_text("utf-8"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert tree["schema"] == AUDIT_SCHEMA and tree["judgement"]["verdict"] == "unchanged"


def test_a_lone_surrogate_does_not_stop_a_report(tmp_path: Path) -> None:
    path = store.write(audit(), tmp_path / "drift.json")
    assert "\ud800" in audit().distributions[1].passages[0].tokens[9].text
    assert store.read(path).distributions[1].passages[0].tokens[9].text.startswith("\x1b[31mred\x07\u202etxet")


@pytest.mark.parametrize("bad", [math.nan, math.inf, np.float64(-math.inf)])
def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path, bad: float) -> None:
    wrong = replace(part("x", 0.1), forward=Interval(value=bad, n=1, clusters=1))
    broken = unchanged(distributions=[replace(unchanged().distributions[0], domains=[wrong])])
    with pytest.raises(RunError, match="not finite"):
        store.write(broken, tmp_path / "drift.json")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_schema_is_refused() -> None:
    text = store.to_json(replace(unchanged(), schema=AUDIT_SCHEMA + 1))
    with pytest.raises(UsageError, match=rf"x\.json has schema {AUDIT_SCHEMA + 1} and this kleash reads up to"):
        store.from_json(text, "x.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "no schema"),
        ('{"schema": true}', "no schema"),
        ('{"schema": "1"}', "no schema"),
        ('{"schema": 1}', "base: "),
    ],
)
def test_other_files_are_told_apart(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        store.from_json(text, "x.json")


def test_a_wrong_value_is_named() -> None:
    tree = json.loads(store.to_json(unchanged()))
    tree["judgement"]["verdict"] = "fine"
    with pytest.raises(UsageError, match=r"judgement\.verdict"):
        store.from_json(json.dumps(tree), "x.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no report .*drift\.json"):
        store.read(tmp_path / "drift.json")
