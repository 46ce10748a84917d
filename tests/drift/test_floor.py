"""Noise floor and yardsticks."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.drift.pairs import pair_of, random_documents
from tests.models import build
from tests.tolerances import FP32

from kleash.drift import floor
from kleash.drift.compare import measure
from kleash.drift.floor import few, measure_floor
from kleash.drift.records import Floor
from kleash.drift.yardsticks import measure_yardsticks
from kleash.errors import RunError
from kleash.models.rounding import SCHEME, rounded


def as_dtype(dtype: torch.dtype) -> Any:
    return build.model().to(dtype)


def test_the_floor_of_full_precision_is_next_to_nothing() -> None:
    found, reach = measure_floor(pair_of(build.model(), build.model(seed=1)), random_documents())
    assert sorted(found.by) == ["batch shape", "repeated"]
    assert found.by["repeated"] == 0
    assert 0 <= found.value <= reach < FP32


@pytest.mark.parametrize("base", [torch.float32, torch.bfloat16])
def test_a_side_in_half_precision_raises_the_floor_to_what_it_makes(base: torch.dtype) -> None:
    """The floor is then the very KL between the two precisions of the base."""
    pair = pair_of(as_dtype(base), as_dtype(torch.bfloat16))
    found, reach = measure_floor(pair, random_documents())
    name = "bfloat16 against float32"
    twin = build.model() if base == torch.float32 else as_dtype(torch.bfloat16).float()
    expected = measure(pair_of(twin, as_dtype(torch.bfloat16)), random_documents()).forward
    assert expected is not None
    assert found.value == found.by[name] == pytest.approx(np.abs(expected).mean(), abs=FP32)
    assert reach == pytest.approx(expected.max(), abs=FP32)
    assert pair.base.opened.policy.causal.dtype == base


def test_where_memory_is_short_the_precision_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(floor, "held_in", none_left)
    found, _ = measure_floor(pair_of(build.model(), as_dtype(torch.bfloat16)), random_documents())
    assert sorted(found.by) == ["batch shape", "repeated"]


def test_a_broken_base_is_said() -> None:
    broken = build.model()
    with torch.no_grad():
        broken.get_input_embeddings().weight.fill_(torch.nan)
    with pytest.raises(RunError, match="gives NaN on every token"):
        measure_floor(pair_of(broken, build.model()), random_documents())


def test_few_documents_are_whole_ones() -> None:
    rows = random_documents()
    lengths = [len(d.ids) for d in rows]
    assert few(rows, 1) == rows[:1]
    assert few(rows, lengths[0] + lengths[1]) == rows[:2]
    assert few(rows, 10_000) == rows


def test_yardsticks() -> None:
    base = build.model()
    rounded_base = build.model()
    with torch.no_grad():
        names = {n for n, m in rounded_base.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
        for name in names:
            weight = rounded_base.get_submodule(name).weight
            weight.copy_(rounded(weight))
    rows = random_documents()
    expected = measure(pair_of(base, rounded_base), rows).forward
    assert expected is not None
    found = measure_yardsticks(
        pair_of(base, base), rows, 0.05, cooler=True, floor=Floor(value=0.01, by={"repeated": 0.01})
    )
    assert found.four_bit == pytest.approx(expected.mean(), abs=FP32)
    assert found.four_bit_scheme == SCHEME
    assert found.times_floor == pytest.approx(5)
    assert found.temperature is not None
    assert 0.3 < found.temperature < 1
    warmer = measure_yardsticks(pair_of(base, base), rows, 0.05, cooler=False, floor=None)
    assert warmer.temperature is not None
    assert warmer.temperature > 1
    assert warmer.times_floor is None
    already = measure_yardsticks(pair_of(rounded_base, base), rows, 100.0, cooler=True, floor=None)
    assert (already.four_bit, already.temperature) == (None, None)
    assert already.four_bit_scheme == "already 4-bit: 100% of the base's linear weights lie on a 4-bit grid"
