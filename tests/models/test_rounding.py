"""A model rounded to four bits, or held in another precision, and back."""

import pytest
import torch
from tests.models import build
from tests.tolerances import FP32

from kleash.models import adapters
from kleash.models.policy import Policy
from kleash.models.rounding import GROUP, held_in, in_four_bits, linear_layers, rounded, share_on_grid
from kleash.models.spec import Adapter

IDS = torch.arange(12)[None]


def states(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.body(input_ids=IDS, use_cache=False).last_hidden_state


def test_each_weight_goes_to_the_nearest_of_its_groups_levels() -> None:
    weight = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    found = rounded(weight)
    for row in range(3):
        for start in (0, GROUP):  # the second group is cut short
            group = weight[row, start : start + GROUP].tolist()
            scale = max(map(abs, group)) / 7
            levels = [k * scale for k in range(-7, 8)]
            nearest = [min(levels, key=lambda level, w=w: abs(level - w)) for w in group]
            assert found[row, start : start + GROUP].tolist() == pytest.approx(nearest, abs=FP32)
    assert rounded(torch.zeros(2, 64)).tolist() == torch.zeros(2, 64).tolist()


def test_a_model_in_four_bits_is_the_one_with_rounded_weights_and_then_itself_again() -> None:
    policy, twin = build.policy(), build.policy()
    with torch.no_grad():
        for layer in linear_layers(twin):
            layer.weight.copy_(rounded(layer.weight))
    before = {name: p.clone() for name, p in policy.named_parameters()}
    plain = states(policy)
    with in_four_bits(policy):
        four_bits = states(policy)
    assert torch.equal(four_bits, states(twin))
    assert not torch.equal(four_bits, plain)
    assert torch.equal(states(policy), plain)
    assert all(torch.equal(p, before[name]) for name, p in policy.named_parameters())


def test_a_forward_that_fails_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build.policy()
    plain = states(policy)
    layer = linear_layers(policy)[-1]

    def broken(*_: object) -> None:
        raise MemoryError

    with in_four_bits(policy), monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(layer, "forward", broken)
        states(policy)
    assert torch.equal(states(policy), plain)


def test_adapters_are_not_rounded() -> None:
    model = adapters.attach(build.model(), Adapter(rank=2), "x", seed=0)
    policy = Policy(model, build.policy().recipe)
    assert len(linear_layers(policy)) == len(linear_layers(build.policy())) == 14


def test_weights_that_lie_on_a_grid_are_seen() -> None:
    policy = build.policy()
    assert share_on_grid(policy) == 0
    layers = linear_layers(policy)
    with torch.no_grad():
        for layer in layers[: len(layers) // 2]:
            layer.weight.copy_(rounded(layer.weight))
    total = sum(layer.weight.numel() for layer in layers)
    expected = sum(layer.weight.numel() for layer in layers[: len(layers) // 2]) / total
    assert share_on_grid(policy) == pytest.approx(expected, abs=FP32)


def test_another_precision_and_back_to_the_very_tensors() -> None:
    policy = build.policy()
    pointers = [p.data_ptr() for p in policy.parameters()]
    plain = states(policy)
    with held_in(policy, torch.bfloat16):
        assert states(policy).dtype == torch.bfloat16
    assert [p.data_ptr() for p in policy.parameters()] == pointers
    assert torch.equal(states(policy), plain)
