"""Masked statistics against slow loops, and garbage under the mask."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import EXACT, FP32

from kleash.errors import UsageError
from kleash.masked import clustered_ratio, masked_mean, masked_sum, require_bool, whiten


def test_garbage_under_the_mask_changes_neither_sum_nor_gradient() -> None:
    x = torch.tensor([1.0, math.nan, 3.0, math.inf], requires_grad=True)
    mask = torch.tensor([True, False, True, False])
    for statistic, value, slope in ((masked_sum, 4.0, 1.0), (masked_mean, 2.0, 0.5)):
        found = statistic(x, mask)
        (gradient,) = torch.autograd.grad(found, x)
        assert float(found.detach()) == value and gradient.tolist() == [slope, 0.0, slope, 0.0]


def test_mean_of_nothing_is_not_zero() -> None:
    assert math.isnan(float(masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_bool_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match="must be bool, True where a token counts"):
        require_bool(torch.ones(3, dtype=dtype))


def slow_ratio(numerator: list[float], denominator: list[float], cluster: list[int]) -> tuple[float, float | None]:
    """R = Σx/Σn; CR1 variance m/(m−1) · Σ_clusters (Σ (x − R n))² / (Σn)², in plain Python."""
    total = sum(denominator)
    ratio = sum(numerator) / total
    residuals: dict[int, float] = {}
    for x, n, c in zip(numerator, denominator, cluster, strict=True):
        residuals[c] = residuals.get(c, 0.0) + x - ratio * n
    m = len(residuals)
    if m < 2:
        return ratio, None
    return ratio, math.sqrt(m / (m - 1) * sum(r * r for r in residuals.values())) / total


rows = st.lists(st.tuples(st.floats(-9, 9), st.integers(1, 9), st.integers(-3, 3)), min_size=1, max_size=20)


@given(rows)
def test_clustered_error_equals_slow_loop(rows: list[tuple[float, int, int]]) -> None:
    """Any cluster labels, in any order, of any size."""
    x, n, c = ([row[i] for row in rows] for i in range(3))
    found = clustered_ratio(torch.tensor(x, dtype=torch.float64), torch.tensor(n, dtype=torch.float64), torch.tensor(c))
    value, error = slow_ratio(x, [float(k) for k in n], c)  # type: ignore[arg-type]
    assert found[0] == pytest.approx(value, rel=EXACT, abs=EXACT)
    assert found[1] == (None if error is None else pytest.approx(error, abs=EXACT))


def test_with_clusters_of_one_it_is_the_textbook_standard_error() -> None:
    x = torch.randn(50, dtype=torch.float64)
    value, error = clustered_ratio(x, torch.ones_like(x), torch.arange(50))
    assert value == pytest.approx(float(np.mean(x.numpy())), abs=EXACT)
    assert error == pytest.approx(float(np.std(x.numpy(), ddof=1) / math.sqrt(50)), rel=EXACT)


def test_duplicating_every_row_of_a_cluster_buys_no_certainty() -> None:
    """Eight copies of a prompt's one value tell nothing new: the error is that of the prompts alone."""
    x = torch.randn(20, dtype=torch.float64)
    alone = clustered_ratio(x, torch.ones_like(x), torch.arange(20))
    copied = clustered_ratio(
        x.repeat_interleave(8), torch.ones(160, dtype=torch.float64), torch.arange(20).repeat_interleave(8)
    )
    assert copied == pytest.approx(alone, rel=EXACT)


@given(st.lists(st.tuples(st.floats(-9, 9), st.booleans()), min_size=1, max_size=9))
def test_whiten_equals_numpy(pairs: list[tuple[float, bool]]) -> None:
    """The mean is gone: the flag that two libraries had the wrong way round does not exist here."""
    x = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
    mask = torch.tensor([counts for _, counts in pairs])
    found = whiten(torch.where(mask, x, math.nan), mask)
    counted = x[mask].numpy()
    if len(counted) == 0 or counted.std() < 1e-3:
        return
    expected = (counted - counted.mean()) / counted.std()
    np.testing.assert_allclose(found.value[mask].numpy(), expected, rtol=EXACT, atol=EXACT)
    assert found.scale == pytest.approx(1 / counted.std(), rel=EXACT)
    assert (found.value[~mask] == 0).all()


def test_whitened_positive_numbers_have_no_mean_left() -> None:
    """Four all-positive returns, on which a kept mean would show as +5.74."""
    found = whiten(torch.tensor([3.0, 3.5, 4.0, 4.5]), torch.ones(4, dtype=torch.bool))
    assert float(found.value.mean()) == pytest.approx(0, abs=FP32)
    assert float(found.value.std(correction=0)) == pytest.approx(1, abs=FP32)


def test_without_spread_whitening_gives_zero_and_scales_nothing() -> None:
    for mask in (torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)):
        found = whiten(torch.full((3,), 2.0), mask)
        assert (found.value == 0).all()
        assert found.scale == 1
