"""A reference that follows: the weighted mean of weights, bitwise the policy at a share of 1, and no second model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import build
from tests.models.test_reference import move, trained_adapter
from tests.tolerances import FP32

from kleash.errors import RunError, UsageError
from kleash.models.fingerprint import differences
from kleash.models.following import EMA, Reset, Stall
from kleash.models.load import Loaded, load
from kleash.models.moving import Moving
from kleash.models.reference import build_reference
from kleash.models.spec import Adapter, ModelSpec

LAW = EMA(rate=0.25)


def full(tmp: Path, **more: Any) -> ModelSpec:
    return ModelSpec(str(build.checkpoint(tmp / "m")), reference_update=LAW, **more)


CASES = {
    "full": full,
    "full-bf16": lambda tmp: full(tmp, dtype="bfloat16"),
    "fresh-lora": lambda tmp: full(tmp, adapter=Adapter(rank=2)),
    "fresh-dora-4bit": lambda tmp: full(tmp, adapter=Adapter(rank=2, dora=True), quantize="4bit"),
    "trained-lora": lambda tmp: ModelSpec(str(trained_adapter(tmp)), reference_update=LAW),
    "trained-lora-base": lambda tmp: ModelSpec(str(trained_adapter(tmp)), reference="base", reference_update=LAW),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def made(case: Any, tmp_path: Path) -> tuple[Loaded, Moving]:
    spec = case(tmp_path)
    loaded = load(spec)
    reference = build_reference(spec, loaded)
    assert isinstance(reference, Moving)
    return loaded, reference


def policys(loaded: Loaded) -> dict[str, torch.Tensor]:
    """The trained weights under the names that a moving reference has for them."""
    named = loaded.policy.model.named_parameters()
    return {n.replace(".default.", ".moving."): p.detach().clone() for n, p in named if p.requires_grad}


@each_case
def test_a_move_is_the_weighted_mean(case: Any, tmp_path: Path) -> None:
    loaded, reference = made(case, tmp_path)
    start = {name: weight.clone() for name, weight in reference.tensors().items()}
    move(loaded.policy)
    reference.follow(0.25)
    now = policys(loaded)
    for name, weight in reference.tensors().items():
        torch.testing.assert_close(weight, 0.25 * now[name] + 0.75 * start[name], rtol=FP32, atol=FP32)
    reference.follow(1.0)
    assert all(torch.equal(weight, now[name]) for name, weight in reference.tensors().items())
    reference.restart()
    assert all(torch.equal(weight, start[name]) for name, weight in reference.tensors().items())


@each_case
def test_current_and_origin_say_what_they_are(case: Any, tmp_path: Path) -> None:
    """Before the first move they are one; after it the origin is where it was, and the KL to it is measured beside."""
    loaded, reference = made(case, tmp_path)
    sample = build.rollout()
    before = reference.states(sample)
    assert before.origin is None
    first = reference.origin.states(sample).hidden
    assert torch.equal(before.hidden, first)
    move(loaded.policy)
    flags = [p.requires_grad for p in loaded.policy.parameters()]
    truth = loaded.policy(sample, reference=before).kl.detach()
    reference.follow(1.0)
    after = reference.states(sample)
    assert after.origin is not None
    assert torch.equal(after.origin.hidden, first)
    look = loaded.policy(sample, reference=after)
    assert look.kl.abs().max() == 0, "the policy is its own reference"
    assert torch.equal(look.kl_origin, truth)
    assert truth.max() > 0
    assert not look.kl_origin.requires_grad
    assert [p.requires_grad for p in loaded.policy.parameters()] == flags


@each_case
def test_saved_and_put_back_it_is_the_same_bit_for_bit(case: Any, tmp_path: Path) -> None:
    loaded, reference = made(case, tmp_path)
    move(loaded.policy)
    reference.follow(0.25)
    saved = {name: weight.clone() for name, weight in reference.tensors().items()}
    expected = reference.fingerprint_now()
    assert differences(reference.fingerprint, expected)
    reference.follow(0.25)
    assert differences(expected, reference.fingerprint_now())
    reference.put(saved, expected)
    assert differences(expected, reference.fingerprint_now()) == []
    name = next(iter(saved))
    saved[name] = saved[name] + 1
    with pytest.raises(RunError, match="is not the one that the run had"):
        reference.put(saved, expected)
    del saved[name]
    with pytest.raises(RunError, match="of another model"):
        reference.put(saved, expected)


@pytest.mark.parametrize("name", ["fresh-lora", "trained-lora", "trained-lora-base"])
def test_no_second_model_for_an_adapter(name: str, tmp_path: Path) -> None:
    loaded, reference = made(CASES[name], tmp_path)
    trained = sum(p.numel() for p in loaded.policy.trainable())
    copies = sum("lora_" in n for n, p in loaded.policy.named_parameters() if not p.requires_grad)
    moving = sum(weight.numel() for weight in reference.tensors().values())
    assert {id(p) for p in reference.policies} == {id(loaded.policy)}
    assert moving == trained
    assert copies == len(reference.tensors()) * (2 if name == "trained-lora" else 1)


def test_of_dora_the_moving_one_begins_as_the_base(tmp_path: Path) -> None:
    """Its row lengths are the base's, not the trained ones, which a product B·A = 0 alone would leave in place."""
    loaded = load(ModelSpec(str(build.checkpoint(tmp_path / "base")), adapter=Adapter(rank=2, dora=True)))
    move(loaded.policy)
    loaded.policy.save(tmp_path / "sft", loaded.tokenizer)
    _, reference = made(lambda tmp: ModelSpec(str(tmp / "sft"), reference="base", reference_update=LAW), tmp_path)
    rollout = build.rollout()
    ours, base = (states.states(rollout).hidden for states in (reference.current, reference.origin))
    assert (ours - base).abs().max() < FP32


def test_a_model_that_cannot_follow(tmp_path: Path) -> None:
    spec = full(tmp_path, adapter=Adapter(rank=2), reference=str(build.checkpoint(tmp_path / "other", seed=5)))
    with pytest.raises(UsageError, match="cannot follow the policy: its weights are not of the same names"):
        build_reference(spec, load(spec))


def test_a_named_model_of_the_same_shapes_can(tmp_path: Path) -> None:
    spec = full(tmp_path, reference=str(build.checkpoint(tmp_path / "other", seed=5)))
    loaded, reference = made(lambda _: spec, tmp_path)
    reference.follow(1.0)
    now = policys(loaded)
    assert all(torch.equal(weight, now[name]) for name, weight in reference.tensors().items())


def test_laws() -> None:
    assert [EMA(rate=0.1, every=3).share(n, 0) for n in range(1, 7)] == [None, None, 0.1, None, None, 0.1]
    assert [Reset(every=2).share(n, 99) for n in range(1, 5)] == [None, 1.0, None, 1.0]
    assert [Stall(patience=2).share(9, stalled) for stalled in range(4)] == [None, None, 1.0, 1.0]
    for wrong in (lambda: EMA(rate=1.0), lambda: EMA(rate=0.0), lambda: Reset(every=0), lambda: Stall(patience=0)):
        with pytest.raises(UsageError, match=r"model\.reference_update"):
            wrong()
