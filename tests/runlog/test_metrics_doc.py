"""docs/metrics.md is what the fields of Step say, and every field says something."""

from dataclasses import fields
from pathlib import Path

import pytest
from tools.make_metrics_doc import OFFLINE, render

from kleash.records import Step

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


@pytest.mark.parametrize("record", [Step, *OFFLINE.values()])
def test_every_field_of_a_step_is_documented(record):
    silent = [field.name for field in fields(record) if not field.metadata.get("doc")]
    assert silent == []


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python tools/make_metrics_doc.py"
