"""The temperature that moves a model as far as a KL says."""

import math

import pytest
import torch
from tests.tolerances import EXACT, FP32, INTERPOLATED

from kleash.kl import tempering
from kleash.kl.tempering import equivalent_temperature, tempered_kl
from kleash.tensors import Head

F64 = torch.float64


def example(dtype: torch.dtype = F64) -> tuple[torch.Tensor, Head]:
    g = torch.Generator().manual_seed(2)
    return torch.randn(9, 5, generator=g).to(dtype), Head(torch.randn(13, 5, generator=g).to(dtype), None, 11, 1.4)


def by_hand(temperature: float) -> float:
    hidden, head = example()
    total = 0.0
    for h in hidden:
        z = [1.4 * float(h @ w) for w in head.weight[:11]]
        p, t = ([math.exp(a / T) for a in z] for T in (1.0, temperature))
        p, t = [a / math.fsum(p) for a in p], [a / math.fsum(t) for a in t]
        total += math.fsum(a * math.log(a / b) for a, b in zip(p, t, strict=True))
    return total / len(hidden)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, EXACT), (torch.float32, FP32)])
def test_equals_float64_from_full_logits(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempering, "CHUNK_BYTES", 200)
    temperatures = [0.3, 0.9, 1.0, 1.1, 5.0]
    found = tempered_kl(*example(dtype), temperatures)
    assert found.tolist() == pytest.approx([by_hand(T) for T in temperatures], abs=tolerance)


def test_a_broken_position_is_left_out() -> None:
    hidden, head = example()
    worse = torch.cat([hidden, torch.full((1, 5), math.nan, dtype=F64)])
    assert tempered_kl(worse, head, [0.5]).tolist() == tempered_kl(hidden, head, [0.5]).tolist()
    assert math.isnan(float(tempered_kl(worse[-1:], head, [0.5])))


@pytest.mark.parametrize("temperature", [0.2, 0.78, 0.97, 0.9995, 1.0005, 1.02, 1.4, 6.0])
def test_the_temperature_is_found_again(temperature: float) -> None:
    hidden, head = example()
    kl = by_hand(temperature)
    found = equivalent_temperature(lambda ts: tempered_kl(hidden, head, ts).tolist(), kl, cooler=temperature < 1)
    assert math.log(found) == pytest.approx(math.log(temperature), rel=INTERPOLATED)


@pytest.mark.parametrize("kl", [0.0, -1.0, math.nan, 100.0])
def test_no_temperature_moves_it_so(kl: float) -> None:
    hidden, head = example()
    assert math.isnan(equivalent_temperature(lambda ts: tempered_kl(hidden, head, ts).tolist(), kl, cooler=True))
