"""Every algorithm has a short recipe, and each recipe for the embedded model loads and passes the checks of a run."""

import re
import tomllib
from pathlib import Path

import pytest

from kleash.algorithms import ALGORITHMS
from kleash.training.api import start
from kleash.training.toml import load_config

ROOT = Path(__file__).parents[2]
RECIPES = {
    path.stem: path
    for path in sorted((ROOT / "recipes").glob("tiny_*.toml"))
    if "algorithm" in tomllib.loads(path.read_text())
}
PAGE = (ROOT / "docs" / "algorithms.md").read_text()


def kinds() -> dict[str, str]:
    """Recipe → the algorithm it is for."""
    return {name: tomllib.loads(path.read_text())["algorithm"]["kind"] for name, path in RECIPES.items()}


def test_every_algorithm_has_one():
    assert set(kinds().values()) == set(ALGORITHMS)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_short_and_told_of(name):
    assert len(RECIPES[name].read_text().splitlines()) < 25
    assert f"`recipes/{name}.toml`" in PAGE


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_section_states_the_gradient_of_the_kl_and_its_unit(kind):
    section = re.split(rf"^## {re.escape(kind)}(?!\w).*$", PAGE, flags=re.M)[1].split("\n## ")[0]
    stated = re.search(r"\*\*KL\*\*: (.+?)(?:\n\n|\Z)", section, re.S)
    assert stated is not None
    assert "nats per" in stated[1] and "gradient" in stated[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_passes_the_checks_of_a_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    start(load_config(RECIPES[name], [f"out={tmp_path / 'run'}"]), check_only=True)
    assert not (tmp_path / "run" / "events.jsonl").exists()
