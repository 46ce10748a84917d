"""The command, and a model that moved, for the tests of the audit from outside."""

from pathlib import Path

import pytest
from tests.test_cli import Found, run


@pytest.fixture
def kleash_(capsys, monkeypatch, tmp_path):
    """The command, with files in a directory of the test's and the base's states in another."""
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path / "cache"))

    def call(*arguments: object, out: Path = tmp_path / "out") -> Found:
        return run(capsys, monkeypatch, "drift", *arguments, "--out", out)

    return call


@pytest.fixture
def moved(tmp_path_factory) -> Path:
    """The embedded model with its last layer scaled: it is far off, and scores nothing."""
    import torch

    from kleash.models.catalog import resolve
    from kleash.models.checkpoint_files import read_model

    folder = tmp_path_factory.mktemp("moved") / "model"
    model = read_model(resolve("kleash:tiny"), torch.float32, False)
    with torch.no_grad():
        model.model.layers[-1].mlp.down_proj.weight *= 3
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((resolve("kleash:tiny") / name).read_bytes())
    return folder
