"""The reference is what it says: exactly the policy at the start, still that after training, and it leaves no trace."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import tolerances
from tests.models import build

from kleash.errors import UsageError
from kleash.models.fingerprint import differences
from kleash.models.load import Loaded, load
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.reference import AdapterOff, AdapterSnapshot, Frozen, Reference, build_reference
from kleash.models.spec import Adapter, ModelSpec

PATHS: list[PathName] = ["packed", "cached", "two_stage", "plain"]
Case = Callable[[Path], tuple[ModelSpec, type]]


def trained_adapter(tmp_path: Path) -> Path:
    """A LoRA adapter that has learned something (B ≠ 0), on a base next to it."""
    base = build.checkpoint(tmp_path / "base")
    loaded = load(ModelSpec(str(base), adapter=Adapter(rank=2)))
    move(loaded.policy)
    loaded.policy.save(tmp_path / "sft", loaded.tokenizer)
    return tmp_path / "sft"


def move(policy: Policy) -> None:
    """As a training step would: every trained weight moves."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter += 0.3 * torch.randn_like(parameter)


CASES: dict[str, Case] = {
    "full": lambda tmp: (ModelSpec(str(build.checkpoint(tmp / "m"))), Frozen),
    "full-bf16": lambda tmp: (ModelSpec(str(build.checkpoint(tmp / "m")), dtype="bfloat16"), Frozen),
    "fresh-lora": lambda tmp: (ModelSpec(str(build.checkpoint(tmp / "m")), adapter=Adapter(rank=2)), AdapterOff),
    "fresh-lora-bf16": lambda tmp: (
        ModelSpec(str(build.checkpoint(tmp / "m")), adapter=Adapter(rank=2), dtype="bfloat16"),
        AdapterOff,
    ),
    "trained-lora": lambda tmp: (ModelSpec(str(trained_adapter(tmp))), AdapterSnapshot),
    "trained-lora-bf16": lambda tmp: (ModelSpec(str(trained_adapter(tmp)), dtype="bfloat16"), AdapterSnapshot),
    "fresh-dora": lambda tmp: (
        ModelSpec(str(build.checkpoint(tmp / "m")), adapter=Adapter(rank=2, dora=True)),
        AdapterOff,
    ),
    "fresh-lora-4bit": lambda tmp: (
        ModelSpec(str(build.checkpoint(tmp / "m")), adapter=Adapter(rank=2), quantize="4bit"),
        AdapterOff,
    ),
    "trained-lora-8bit-bf16": lambda tmp: (
        ModelSpec(str(trained_adapter(tmp)), quantize="8bit", dtype="bfloat16"),
        AdapterSnapshot,
    ),
    "path": lambda tmp: (
        ModelSpec(str(build.checkpoint(tmp / "m")), reference=str(build.checkpoint(tmp / "same"))),
        Frozen,
    ),
    "path-of-an-adapter": lambda tmp: (
        ModelSpec(str(trained_adapter(tmp)), reference=str(tmp / "sft")),
        Frozen,
    ),
    "checkpointed": lambda tmp: (ModelSpec(str(build.checkpoint(tmp / "m")), gradient_checkpointing=True), Frozen),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_policy_equals_reference_exactly_before_the_first_step(case: Case, tmp_path: Path) -> None:
    spec, kind = case(tmp_path)
    loaded = load(spec)
    reference: Reference = build_reference(spec, loaded)
    assert isinstance(reference, kind)
    sample = build.rollout()
    for path, rows in [*((path, None) for path in PATHS), ("two_stage", 1), ("plain", 2)]:
        look = loaded.policy(sample, reference=reference.states(sample, path, rows), path=path, rows=rows)
        assert look.kl.abs().max() == 0
        assert torch.equal(look.ref, look.logprobs.detach())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_reference_stays_and_the_policy_moves(case: Case, tmp_path: Path) -> None:
    spec, _ = case(tmp_path)
    loaded = load(spec)
    reference, sample = build_reference(spec, loaded), build.rollout()
    before = reference.states(sample)
    head = before.head.weight.clone()
    flags = [p.requires_grad for p in loaded.policy.parameters()]
    move(loaded.policy)
    after = reference.states(sample)
    assert torch.equal(after.hidden, before.hidden)
    assert torch.equal(after.head.weight, head)
    assert not after.hidden.requires_grad
    assert not after.head.weight.requires_grad
    assert [p.requires_grad for p in loaded.policy.parameters()] == flags
    look = loaded.policy(sample, reference=after)
    assert look.kl.max() > 0
    look.kl.sum().backward()
    assert all(p.grad is not None for p in loaded.policy.trainable())


@pytest.mark.parametrize("name", ["trained-lora", "fresh-lora"])
def test_the_policy_is_restored_also_when_the_reference_fails(name: str, tmp_path: Path) -> None:
    spec, _ = CASES[name](tmp_path)
    loaded = load(spec)
    reference, sample = build_reference(spec, loaded), build.rollout()
    move(loaded.policy)
    hidden = loaded.policy.hidden(sample).detach()
    flags = [p.requires_grad for p in loaded.policy.parameters()]

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    hook = loaded.policy.body.register_forward_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        reference.states(sample)
    hook.remove()
    assert torch.equal(loaded.policy.hidden(sample), hidden)
    assert [p.requires_grad for p in loaded.policy.parameters()] == flags


def test_no_second_model_for_an_adapter(tmp_path: Path) -> None:
    spec, _ = CASES["trained-lora"](tmp_path)
    loaded = load(spec)
    body = sum(p.numel() for n, p in loaded.policy.named_parameters() if "lora_" not in n)
    trained = sum(p.numel() for p in loaded.policy.trainable())
    reference = build_reference(spec, loaded)
    assert reference.policies == (loaded.policy,)
    assert sum(p.numel() for p in loaded.policy.parameters()) == body + 2 * trained
    assert sum(p.numel() for p in loaded.policy.trainable()) == trained


def test_base_is_the_base_and_start_is_not(tmp_path: Path) -> None:
    """A policy that starts from a trained adapter: its start is not its base, and each fingerprint says so."""
    adapter = trained_adapter(tmp_path)
    start, base = ModelSpec(str(adapter)), ModelSpec(str(adapter), reference="base")
    loaded: Loaded = load(base)
    sample = build.rollout()
    off = build_reference(base, loaded)
    truth = build.single_rows(load(ModelSpec(str(tmp_path / "base"))).policy.body, sample)
    torch.testing.assert_close(
        off.states(sample, "plain").hidden[sample.mask], truth, rtol=tolerances.PATHS, atol=tolerances.PATHS
    )
    kept = build_reference(start, loaded)
    assert [line.split(" changed")[0] for line in differences(off.fingerprint, kept.fingerprint)] == ["the adapter"]
    assert loaded.policy(sample, reference=off.states(sample)).kl.max() > 0


def test_a_step_of_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build.checkpoint(tmp_path / "m")
    other = build.checkpoint(tmp_path / "runs" / "x" / "checkpoints" / "step-000200", seed=5)
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec(str(policy), reference="runs/x@step-200")
    reference, sample = build_reference(spec, load(spec)), build.rollout()
    expected = load(ModelSpec(str(other))).policy.hidden(sample)
    assert torch.equal(reference.states(sample).hidden, expected)


def test_bad_references(tmp_path: Path) -> None:
    policy = build.checkpoint(tmp_path / "m")
    loaded = load(ModelSpec(str(policy)))
    with pytest.raises(UsageError, match="this policy has none"):
        build_reference(ModelSpec(str(policy), reference="base"), loaded)
    foreign = build.checkpoint(tmp_path / "foreign", words=30)
    with pytest.raises(UsageError, match="another tokenizer"):
        build_reference(ModelSpec(str(policy), reference=str(foreign)), loaded)
