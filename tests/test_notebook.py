"""The notebook as it is committed: run in order, small, without errors, and without a trace of where it was run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "quickstart.ipynb"
TEXT = NOTEBOOK.read_text(encoding="utf-8")
CODE: list[dict[str, Any]] = [cell for cell in json.loads(TEXT)["cells"] if cell["cell_type"] == "code"]


def test_it_was_run_from_top_to_bottom_without_an_error() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1)), (
        "run: make notebook WRITE=--write"
    )
    kinds = {output["output_type"] for cell in CODE for output in cell["outputs"]}
    assert kinds == {"stream", "execute_result"}
    assert all(output.get("name", "stdout") == "stdout" for cell in CODE for output in cell["outputs"])


def test_it_is_small_and_names_no_place_and_no_day() -> None:
    assert len(TEXT.encode()) < 150_000
    assert not re.findall(r"/(?:tmp|root|home|work|Users|usr|opt)/", TEXT)
    assert not re.findall(r"20\d\d-\d\d-\d\d", TEXT)


@pytest.mark.parametrize("cell", CODE, ids=lambda cell: cell["id"])
def test_its_code_is_python_on_lines_that_fit(cell: dict[str, Any]) -> None:
    lines = [line for line in "".join(cell["source"]).splitlines() if not line.startswith("!")]
    compile("\n".join(lines), "cell", "exec")
    assert all(len(line) <= 120 for line in lines)


def test_each_kind_of_object_is_shown() -> None:
    shown = [
        re.sub("<.*?>", "", "".join(output["data"]["text/html"]))
        for cell in CODE
        for output in cell["outputs"]
        if "text/html" in output.get("data", {})
    ]
    assert [any(word in text for text in shown) for word in ("The leash held", "GAMING", "off task")] == [True] * 3
