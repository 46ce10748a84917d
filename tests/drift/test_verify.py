"""A report and a model: the same by its fingerprint, its base, or another one, and which of its parts differ."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.report.audits import unchanged
from typer.testing import CliRunner

from kleash.cli import app
from kleash.drift import store
from kleash.drift.records import Audit
from kleash.drift.sources import open_one
from kleash.drift.verify import verify
from kleash.errors import UsageError
from kleash.models.catalog import resolve


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with one number changed."""
    path = tmp_path_factory.mktemp("models") / "tuned"
    shutil.copytree(resolve("kleash:tiny"), path)
    weights = load_file(path / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def audit(tuned: Path) -> Audit:
    return unchanged(base=open_one("kleash:tiny").record, tuned=open_one(str(tuned)).record)


def test_the_models_of_a_report(audit: Audit, tuned: Path) -> None:
    assert verify(audit, str(tuned)).is_model == "tuned"
    base = verify(audit, "kleash:tiny")
    assert base.is_model == "base" and base.differences[0].startswith("the weights changed: ")


def test_another_model(audit: Audit, tuned: Path) -> None:
    before = replace(audit.tuned, fingerprint=audit.tuned.fingerprint | {"tokenizer": "0" * 64})
    found = verify(replace(audit, base=before, tuned=before), str(tuned))
    assert found.is_model is None and [one.partition(":")[0] for one in found.differences] == ["the tokenizer changed"]


def test_the_same_file_in_the_reports_precision(audit: Audit, tuned: Path) -> None:
    """A report made at bfloat16 is checked at bfloat16, whatever this machine would read the file in."""
    half = unchanged(base=audit.base, tuned=open_one(f"{tuned}@bfloat16").record)
    assert half.tuned.fingerprint != audit.tuned.fingerprint
    assert verify(half, str(tuned)).is_model == "tuned"
    assert verify(half, f"{tuned}@float32").is_model is None
    assert verify(half, "kleash:tiny").is_model == "base"


def test_a_rounded_model(tuned: Path) -> None:
    rounded = unchanged(base=open_one("kleash:tiny").record, tuned=open_one("kleash:tiny@8bit").record)
    assert verify(rounded, "kleash:tiny@8bit").is_model == verify(rounded, "kleash:tiny").is_model == "tuned"
    assert verify(rounded, str(tuned)).is_model is None


def test_on_the_command_line(audit: Audit, tuned: Path, tmp_path: Path) -> None:
    report = str(store.write(audit, tmp_path / "drift.json"))
    run = CliRunner().invoke
    same = run(app, ["verify", report, str(tuned)])
    assert same.exit_code == 0 and f"{tuned} is the model of {report}" in same.stdout and "unchanged" in same.stdout
    other = run(app, ["verify", report, "kleash:tiny"])
    assert other.exit_code == 1 and "but its base, kleash:tiny" in other.stdout
    told = json.loads(run(app, ["verify", report, str(tuned), "--json"]).stdout)
    assert told == {"is_model": "tuned", "differences": [], "verdict": "unchanged", "model": str(tuned)}
    missing = run(app, ["verify", str(tmp_path / "no.json"), str(tuned)])
    assert isinstance(missing.exception, UsageError) and "there is no report" in str(missing.exception)
