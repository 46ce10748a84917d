"""Bases in few bits: what torchao rounds to, unpacked and differentiated as it says; everything else as with LoRA."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tests.models import build
from tests.models.test_reference import move
from tests.tolerances import FP32
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from kleash.errors import RunError, UsageError
from kleash.models import adapters, quantising
from kleash.models.fingerprint import differences, fingerprint
from kleash.models.heads import recipe_from
from kleash.models.ledger import entries
from kleash.models.load import Loaded, load
from kleash.models.memory import size_of
from kleash.models.plan import Work
from kleash.models.policy import Policy
from kleash.models.quantised import QuantisedLinear, in_full, quantised_layers, weights_in
from kleash.models.reference import build_reference
from kleash.models.spec import Adapter, ModelSpec
from kleash.tensors import Rollout

torchao: Any = pytest.importorskip("torchao.quantization")
HOW = ["4bit", "8bit"]


def packed(weight: torch.Tensor, how: str) -> Any:
    packing, fits = quantising._packing(how)
    assert fits(weight)
    return packing(weight)


def loaded(tmp_path: Path, how: Any, **spec: Any) -> Loaded:
    path = tmp_path / "model"
    if not path.exists():
        build.checkpoint(path)
    return load(ModelSpec(str(path), quantize=how, **{"adapter": Adapter(rank=2), **spec}))


def test_the_numbers_are_torchaos() -> None:
    """To the bit; torchao's own searches for the nearest level, and unpacks, in another way."""
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(0)) / 10
    normal = torchao.NF4Tensor.from_tensor(weight, 64, 32)
    assert torch.equal(packed(weight, "4bit").unpacked(torch.float32), normal.get_original_weight())
    whole = torchao.IntxUnpackedToInt8Tensor.from_hp(weight, (1, 32), torch.int8)
    assert torch.equal(packed(weight, "8bit").unpacked(torch.float32), whole.dequantize())


def test_a_block_of_zeros_stays_zero() -> None:
    """A matrix that was pruned or padded: torchao's division gives no number there, and its level is then -1."""
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(0))
    weight[:7] = 0
    for how in HOW:
        assert (packed(weight, how).unpacked(torch.float32)[:7] == 0).all()


@pytest.mark.parametrize("how", HOW)
def test_a_layer_is_the_product_with_the_unpacked_weight_and_keeps_nothing_of_it(how: str) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 48)
    layer = QuantisedLinear(plain, packed(plain.weight.detach(), how))
    weight = layer.weight.double()
    x = torch.randn(5, 64, requires_grad=True)
    kept: list[torch.Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = layer(x)
    assert kept == []
    g = torch.randn(5, 48)
    y.backward(g)
    assert x.grad is not None
    assert (y - (x.double() @ weight.T + plain.bias)).abs().max() < FP32
    assert (x.grad - g.double() @ weight).abs().max() < FP32
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


def twin(own: Loaded, dora: bool) -> Policy:
    """The same policy in float64 by plain layers: the base's weights unpacked, the same adapter by peft on them."""
    base = build.model(dtype=torch.float64)
    state = in_full(own.policy.causal)
    plain = {n.replace(".base_layer", ""): t.double() for n, t in state.items() if "lora_" not in n}
    base.load_state_dict(plain)
    adapted = adapters.attach(base, Adapter(rank=2, dora=dora), "base", seed=0).double()
    assert isinstance(adapted, PeftModel)
    own_weights = dict(own.policy.model.named_parameters())
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(own_weights[name])
    return Policy(adapted, recipe_from(base.config, build.VOCAB)).eval()


def gradients(policy: Policy, rollout: Rollout, states: Any) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    look = policy(rollout, reference=states)
    loss = look.kl.sum() - look.logprobs[rollout.mask].sum()
    names = [name for name, p in policy.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, policy.trainable())
    return dict(zip(names, found, strict=True)), look.kl.detach()


@pytest.mark.parametrize(("how", "dora"), [("4bit", False), ("8bit", False), ("4bit", True)])
def test_kl_and_the_adapters_gradient_are_those_of_the_unpacked_base(tmp_path: Path, how: str, dora: bool) -> None:
    own = loaded(tmp_path, how, adapter=Adapter(rank=2, dora=dora))
    move(own.policy)
    other, rollout = twin(own, dora), build.rollout()
    with torch.no_grad():
        states, truth = [], []
        with adapters.switched_off(own.policy.model), adapters.switched_off(other.model):
            for policy, into in ((own.policy, states), (other, truth)):
                reference = build_reference(ModelSpec("x"), dataclasses.replace(own, policy=policy))
                into.append(reference.states(rollout))
    ours, kl = gradients(own.policy, rollout, states[0])
    theirs, exact = gradients(other, rollout, truth[0])
    assert (kl - exact).abs().max() < FP32 * exact.max()
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).norm() < FP32 * 10 * theirs[name].norm(), name


def test_a_fingerprint_names_the_checkpoint_and_the_scheme(tmp_path: Path) -> None:
    def taken(how: Any) -> dict[str, Any]:
        own = loaded(tmp_path, how)
        return fingerprint(own.policy, own.tokenizer, temperature=1.0, adapter=None)

    plain, four, again, eight = taken(None), taken("4bit"), taken("4bit"), taken("8bit")
    assert plain["weights"] == four["weights"] == eight["weights"]
    assert four == again
    assert [line.split(" changed")[0] for line in differences(plain, four)] == ["the quantisation"]
    assert differences(four, eight)


@pytest.mark.parametrize("how", HOW)
def test_a_checkpoint_is_the_adapter_alone_and_loads_on_the_same_base(tmp_path: Path, how: Any) -> None:
    own, rollout = loaded(tmp_path, how), build.rollout()
    move(own.policy)
    own.policy.save(tmp_path / "saved", own.tokenizer)
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    again = load(ModelSpec(str(tmp_path / "saved"), quantize=how))
    with torch.no_grad():
        assert torch.equal(own.policy(rollout).logprobs, again.policy(rollout).logprobs)


def test_the_ledger_counts_the_bytes_that_are_there(tmp_path: Path) -> None:
    """By hand: half a byte a weight, a byte a block of 64, four for each 256 of those at most, the levels, a mean."""
    own, plain = loaded(tmp_path, "4bit"), loaded(tmp_path, None)
    assert weights_in(own.policy) == weights_in(plain.policy)
    sizes = [layer.in_features * layer.out_features for layer in quantised_layers(own.policy)]
    table, mean = 4 * 16 * 16 * 2, 4
    by_hand = sum(n // 2 + n // 64 + table + mean for n in sizes)
    factors = sum(layer.packed.factors.nbytes for layer in quantised_layers(own.policy))
    assert own.policy.quantised is not None
    assert own.policy.quantised.after == by_hand + factors
    assert own.policy.quantised.before == 4 * sum(sizes)
    work = Work(prompts=1, groups=1, group_size=2, prompt=4, length=4)
    found, whole = (
        {e.what: e.size for e in entries(x.policy, (), size_of(x.policy, x.paths), work)} for x in (own, plain)
    )
    saved = whole["weights that are not"] - found["weights that are not"]
    assert saved == own.policy.quantised.before - own.policy.quantised.after
    assert found["a quantised layer, unpacked"] == max(sizes) * 6
    assert size_of(own.policy, own.paths).weights == size_of(plain.policy, plain.paths).weights


def test_against_the_base_as_it_is_stored_the_kl_begins_at_the_rounding(tmp_path: Path) -> None:
    own = loaded(tmp_path, "4bit")
    spec = ModelSpec(
        str(tmp_path / "model"), quantize="4bit", adapter=Adapter(rank=2), reference=str(tmp_path / "model")
    )
    reference, rollout = build_reference(spec, own), build.rollout()
    assert not quantised_layers(reference.policies[0])
    with torch.no_grad():
        look = own.policy(rollout, reference=reference.states(rollout))
    assert look.kl is not None
    assert (look.kl[rollout.mask] > 0).all()


def test_what_does_not_fit_stays_and_is_said(tmp_path: Path) -> None:
    """48 columns are no multiple of 32."""
    own = loaded(tmp_path, "8bit")
    assert own.policy.quantised is not None
    assert own.policy.quantised.left == tuple(f"model.layers.{i}.mlp.down_proj" for i in (0, 1))
    assert own.policy.quantised.layers == 12
    build.checkpoint(tmp_path / "odd", hidden_size=24, intermediate_size=40, head_dim=6)
    with pytest.raises(UsageError, match=r"none of the linear layers .*q_proj, does not fit blocks of 32"):
        load(ModelSpec(str(tmp_path / "odd"), quantize="8bit", adapter=Adapter(rank=2)))


def test_what_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"nothing left to train: add model\.adapter"):
        loaded(tmp_path, "4bit", adapter=None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(RunError, match=r'model\.quantize = "4bit" takes torchao: pip install "kleash\[quantised\]"'):
        loaded(tmp_path, "4bit")


def test_what_few_bits_make_of_a_text_is_measured(tmp_path: Path) -> None:
    """Against the two models' own logits, by torch's KL, on a tokenizer that can read the text."""
    from kleash.models.catalog import resolve

    own = load(ModelSpec("kleash:tiny", quantize="4bit", adapter=Adapter(rank=2)))
    base = load(ModelSpec("kleash:tiny")).policy.causal
    quantised = own.policy.quantised
    assert quantised is not None
    assert resolve("kleash:tiny").is_dir()
    ids = torch.tensor([own.tokenizer(quantising.TEXT, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        full = base(ids).logits[0].double().log_softmax(-1)
        with adapters.switched_off(own.policy.model):
            few = own.policy.causal(ids).logits[0].double().log_softmax(-1)
    expected = nn.functional.kl_div(few, full, log_target=True, reduction="batchmean")
    assert quantised.cost == pytest.approx(float(expected), rel=FP32)
    assert quantised.tokens == ids.shape[1]
