"""docs/metrics.md is what the fields of Step say, and every field says something."""

from dataclasses import fields
from pathlib import Path

from tools.make_metrics_doc import render

from kleash.records import Step

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_field_of_a_step_is_documented():
    silent = [field.name for field in fields(Step) if not field.metadata.get("doc")]
    assert silent == []


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python tools/make_metrics_doc.py"
