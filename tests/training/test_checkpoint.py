"""A checkpoint is there whole or not at all, is told apart when it was cut, and restores everything bitwise."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import build
from tests.training.small import events, settings, steps

from kleash.errors import RunError
from kleash.models.load import load
from kleash.models.spec import Adapter, ModelSpec
from kleash.runlog import Notice, RunEnd
from kleash.training import checkpoint
from kleash.training.api import start
from kleash.training.run import Run
from kleash.training.toml import parse_config

MEMORY = {"controller": {"beta": 0.123456789, "previous_error": 1 / 3, "held": "why"}, "other": [1, None]}
TENSORS = {"running": {"mean": torch.tensor([1 / 3, float("nan")]), "count": torch.tensor(7)}}


def made(directory: Path, adapter: Adapter | None = None) -> tuple[ModelSpec, Any, torch.optim.Optimizer]:
    """A loaded model whose optimizer has already moved it."""
    if not (directory / "model").exists():
        build.checkpoint(directory / "model")
    spec = ModelSpec(policy=str(directory / "model"), adapter=adapter)
    loaded = load(spec)
    optimizer = torch.optim.AdamW(loaded.policy.trainable(), lr=1e-2)
    move(loaded.policy, optimizer, 0)
    return spec, loaded, optimizer


def move(policy: Any, optimizer: torch.optim.Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.trainable():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def save(root: Path, step: int, loaded: Any, optimizer: torch.optim.Optimizer) -> Path:
    return checkpoint.save(root, step, loaded.policy, loaded.tokenizer, optimizer, MEMORY, TENSORS)


def reload(spec: ModelSpec) -> checkpoint.Reload:
    return lambda directory: load(replace(spec, policy=str(directory))).policy


def weights(policy: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


@pytest.mark.parametrize("adapter", [None, Adapter(rank=2)], ids=["full", "lora"])
def test_restored_bitwise(tmp_path, adapter):
    spec, loaded, optimizer = made(tmp_path, adapter)
    checkpoint.seed_random(7)
    np.random.normal()  # leaves its twin in the generator: part of the state
    random.gauss(0, 1)  # and so does this
    path = save(tmp_path / "c", 5, loaded, optimizer)
    drawn = np.random.normal(), np.random.rand(), torch.rand(3)
    move(loaded.policy, optimizer, 1)
    truth = weights(loaded.policy)

    _, other, fresh = made(tmp_path, adapter)
    move(other.policy, fresh, 9)
    restored = checkpoint.restore(path, reload(spec), other.policy, fresh)
    assert (restored.step, restored.memory) == (5, MEMORY)
    assert torch.equal(restored.tensors["running"]["count"], torch.tensor(7))
    assert restored.tensors["running"]["mean"].isnan().tolist() == [False, True]
    # Python's generator is looked at, not drawn from: the type checks of this test draw from it as well.
    python = json.loads(json.dumps(random.getstate()))
    assert python == json.loads((path / "kleash.json").read_text())["python_random"]
    assert python[2] is not None
    again = np.random.normal(), np.random.rand(), torch.rand(3)
    assert again[:2] == drawn[:2]
    assert torch.equal(again[2], drawn[2])
    # The next update is the same bit for bit: weights, moments and step counts are all back.
    move(other.policy, fresh, 1)
    found = weights(other.policy)
    assert found.keys() == truth.keys()
    assert all(torch.equal(found[name], truth[name]) for name in truth)


def test_it_is_a_checkpoint_that_transformers_loads(tmp_path):
    from transformers import AutoModelForCausalLM

    _, loaded, optimizer = made(tmp_path)
    path = save(tmp_path / "c", 5, loaded, optimizer)
    again = AutoModelForCausalLM.from_pretrained(path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), loaded.policy.causal.parameters(), strict=True))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "kleash.json", "config.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_one_that_was_cut_short_is_passed_over_with_a_sentence(tmp_path, name, damage):
    spec, loaded, optimizer = made(tmp_path)
    whole, broken = (save(tmp_path / "c", step, loaded, optimizer) for step in (5, 10))
    if damage == "cut":
        (broken / name).write_bytes((broken / name).read_bytes()[:-3])
    else:
        (broken / name).unlink()
    path, said = checkpoint.newest(tmp_path / "c")
    assert path == whole
    assert len(said) == 1
    assert str(broken) in said[0]
    assert name in said[0]
    assert "passed over" in said[0]
    with pytest.raises(RunError, match="not complete"):
        checkpoint.restore(broken, reload(spec), loaded.policy, optimizer)


def test_the_newest_is_the_highest_step(tmp_path):
    _, loaded, optimizer = made(tmp_path)
    assert checkpoint.newest(tmp_path / "c") == (None, [])
    for step in (2, 10, 9):
        save(tmp_path / "c", step, loaded, optimizer)
    (tmp_path / "c" / "step-by-step").mkdir()  # someone's own
    path, said = checkpoint.newest(tmp_path / "c")
    assert path is not None
    assert (path.name, said) == ("step-000010", [])
    path, _ = checkpoint.newest(tmp_path / "c", before=10)
    assert path is not None
    assert path.name == "step-000009"
    save(tmp_path / "c", 999_999, loaded, optimizer)
    longest = save(tmp_path / "c", 1_000_000, loaded, optimizer)  # comes before 999999 as text
    assert checkpoint.newest(tmp_path / "c") == (longest, [])
    (tmp_path / "c").rename(tmp_path / "checkpoints")
    names = [c.path.name for c in Run(tmp_path).checkpoints]
    assert names == ["step-000002", "step-000009", "step-000010", "step-999999", "step-1000000"]


def test_one_of_another_model_is_refused(tmp_path):
    spec, loaded, optimizer = made(tmp_path)
    path = save(tmp_path / "c", 5, loaded, optimizer)
    build.checkpoint(tmp_path / "wide", intermediate_size=64)
    other = load(ModelSpec(policy=str(tmp_path / "wide")))
    with pytest.raises(RunError, match="of another model"):
        checkpoint.restore(path, reload(spec), other.policy, torch.optim.AdamW(other.policy.trainable()))


@pytest.mark.parametrize("fails", ["weights", "optimizer", "state", "rename"])
def test_a_full_disk_leaves_earlier_ones_intact_and_no_half(tmp_path, monkeypatch, fails):
    _, loaded, optimizer = made(tmp_path)
    earlier = save(tmp_path / "c", 5, loaded, optimizer)
    before = {f.name: f.read_bytes() for f in earlier.iterdir()}

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    if fails == "weights":
        monkeypatch.setattr(type(loaded.policy), "save", full)
    elif fails == "optimizer":
        monkeypatch.setattr(checkpoint, "save_file", full)
    elif fails == "state":
        monkeypatch.setattr(Path, "write_text", full)
    else:
        monkeypatch.setattr(checkpoint.os, "rename", full)
    with pytest.raises(RunError, match="No space left on device") as caught:
        save(tmp_path / "c", 10, loaded, optimizer)
    assert "--resume" in str(caught.value)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-000005"]
    assert {f.name: f.read_bytes() for f in earlier.iterdir()} == before
    assert checkpoint.newest(tmp_path / "c") == (earlier, [])


def test_what_a_killed_process_left_is_swept(tmp_path):
    _, loaded, optimizer = made(tmp_path)
    left = tmp_path / "c" / ".step-000003.part"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(tmp_path / "c") == (None, [])
    save(tmp_path / "c", 5, loaded, optimizer)
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["step-000005"]


def test_a_void_one_is_replaced(tmp_path):
    _, loaded, optimizer = made(tmp_path)
    save(tmp_path / "c", 5, loaded, optimizer)
    move(loaded.policy, optimizer, 3)
    path = save(tmp_path / "c", 5, loaded, optimizer)
    found = load(ModelSpec(policy=str(path))).policy
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), loaded.policy.parameters(), strict=True))


def test_a_full_disk_in_a_run_is_one_sentence_and_resumable(tmp_path, monkeypatch):
    """The checkpoint fails, and then the log as well: the first reason is the one that is raised."""
    config = parse_config(settings(tmp_path))
    real = checkpoint.save_file
    saved = []

    def full_later(*args: Any, **kwargs: Any) -> None:
        saved.append(args)
        if len(saved) > 3:  # two files a checkpoint
            raise OSError(28, "No space left on device")
        real(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save_file", full_later)
    with pytest.raises(RunError, match=r"step-000004 could not be written.*No space"):
        start(config)
    monkeypatch.undo()
    run = tmp_path / "run"
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["step-000002"]
    assert "No space" in events(run, RunEnd)[-1].reason
    assert start(config, resume=True).finished
    assert [s.step for s in steps(run)] == [0, 1, 2, 3, 4]
    assert "No space" not in json.dumps([e.reason for e in events(run, RunEnd)[-1:]])


def test_a_log_that_cannot_be_ended_does_not_hide_why_the_run_did(tmp_path, monkeypatch):
    from kleash.runlog.jsonl import Writer

    write = Writer.write

    def full(self: Writer, event: Any) -> None:
        if isinstance(event, RunEnd):
            raise RunError("cannot write to the run log")
        write(self, event)

    monkeypatch.setattr(Writer, "write", full)
    rewards = [{"use": f"{tmp_path / 'rewards.py'}:fails_later"}]
    with pytest.raises(RunError, match="the judge is out"):
        start(parse_config(settings(tmp_path, rewards=rewards)))
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000002"]


def test_a_file_system_without_links_ends_no_run(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    run = start(parse_config(settings(tmp_path, train__steps=2)))
    assert run.finished
    assert [n.text for n in events(run.path, Notice) if "cannot be made to point at it" in n.text]
    with pytest.raises(RunError, match="no link to it could be made"):
        _ = run.best
