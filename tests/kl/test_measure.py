"""A reading against slow numpy loops, its error against simulated coverage, and what makes it invalid."""

import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import EXACT

from kleash.errors import RunError, UsageError
from kleash.kl.measure import ROUNDING, measure
from kleash.records import Reading, Unit

UNITS: tuple[Unit, Unit] = ("nats/token", "nats/sequence")
units = pytest.mark.parametrize("unit", UNITS)


def read(kl: np.ndarray, mask: np.ndarray, group: np.ndarray, unit: Unit = "nats/sequence", **more: str) -> Reading:
    options = {"kind": "kl_ref", "estimator": "exact", **more}
    return measure(torch.tensor(kl), torch.tensor(mask), torch.tensor(group), unit=unit, **options)  # type: ignore[arg-type]


def slow(kl: np.ndarray, mask: np.ndarray, group: np.ndarray, unit: Unit) -> dict[str, float | int | None]:
    """All of a reading in plain loops over the counted tokens."""
    sums, lengths, prompts, values = [], [], [], []
    for row in range(len(kl)):
        counted = [float(kl[row, t]) for t in range(kl.shape[1]) if mask[row, t]]
        if counted:
            sums.append(sum(counted))
            lengths.append(len(counted))
            prompts.append(int(group[row]))
            values += counted
    weights = lengths if unit == "nats/token" else [1] * len(sums)
    value = sum(sums) / sum(weights)
    residuals = {
        g: sum(s - value * w for s, w, p in zip(sums, weights, prompts, strict=True) if p == g) for g in set(prompts)
    }
    m = len(residuals)
    error = math.sqrt(m / (m - 1) * sum(r * r for r in residuals.values())) / sum(weights) if m > 1 else None
    tail = values if unit == "nats/token" else sums
    q95, q99 = (float(np.quantile(tail, q, method="inverted_cdf")) for q in (0.95, 0.99))
    return {
        "value": value, "standard_error": error, "q95": q95, "q99": q99, "max": max(tail),
        "n_prompts": m, "n_sequences": len(sums), "n_tokens": len(values),
    }  # fmt: skip


@units
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30), width=st.integers(1, 9))
def test_equals_slow_loop(unit: Unit, seed: int, rows: int, width: int) -> None:
    """Ragged masks, rows with no token, prompts of unequal numbers of rows; NaN wherever nothing counts."""
    rng = np.random.default_rng(seed)
    mask = rng.random((rows, width)) < 0.6
    mask[0, 0] = True
    group = np.sort(rng.integers(0, 5, rows))
    kl = np.where(mask, rng.exponential(size=(rows, width)), np.nan)
    found = read(kl, mask, group, unit)
    for field, expected in slow(kl, mask, group, unit).items():
        got = getattr(found, field)
        assert got == (None if expected is None else pytest.approx(expected, rel=EXACT, abs=EXACT)), field
    assert found.invalid is None


def test_the_two_units_of_one_example_by_hand() -> None:
    kl = np.array([[1.0, 2.0, 9.0], [5.0, 9.0, 9.0]])
    mask = np.array([[True, True, False], [True, False, False]])
    sequence, token = (read(kl, mask, np.array([0, 1]), unit) for unit in ("nats/sequence", "nats/token"))
    assert (sequence.value, sequence.max, sequence.n_sequences, sequence.n_tokens) == (4.0, 5.0, 2, 3)
    # Sequences 3 and 5 of two prompts: std √2 over √2.
    assert sequence.standard_error == pytest.approx(1.0, abs=EXACT)
    assert token.value == pytest.approx(8 / 3, rel=EXACT) and token.max == 5.0
    assert (sequence.kind, sequence.unit, sequence.estimator) == ("kl_ref", "nats/sequence", "exact")
    assert sequence.direction == "policy||reference"


@pytest.mark.parametrize("n", [1, 19, 20, 21, 99, 100, 101, 1000])
def test_a_quantile_is_an_observed_value(n: int) -> None:
    kl = np.arange(1.0, n + 1)[:, None]
    found = read(kl, np.ones((n, 1), dtype=bool), np.arange(n))
    assert (found.q95, found.q99, found.max) == (-(-95 * n // 100), -(-99 * n // 100), n)


@units
def test_the_error_covers_the_truth(unit: Unit) -> None:
    """Value ± 1.96 errors holds the truth about 95 % of the time with prompts that differ; rows alone would not."""
    rng = np.random.default_rng(0)
    prompts, copies, width, hits, naive = 40, 6, 4, 0, 0
    group, mask = np.repeat(np.arange(prompts), copies), np.ones((prompts * copies, width), dtype=bool)
    truth = 1.0 if unit == "nats/token" else float(width)
    for _ in range(800):
        kl = 1 + np.repeat(rng.normal(size=prompts), copies)[:, None] + rng.normal(size=(prompts * copies, width))
        found = read(kl, mask, group, unit, estimator="k1")
        off = abs(found.value - truth)
        hits += off < 1.96 * (found.standard_error or 0.0)
        naive += off < 1.96 * kl.sum(1).std(ddof=1) / (width if unit == "nats/token" else 1) / math.sqrt(len(kl))
    assert 0.92 < hits / 800 < 0.97
    assert naive / 800 < 0.75


# ── what must not steer ─────────────────────────────────────────────────────────────────────────────────


def rows_of(values: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.array(values)[:, None], np.ones((len(values), 1), dtype=bool), np.arange(len(values))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_kept_and_named(bad: float) -> None:
    found = read(*rows_of([1.0, bad, 2.0]))
    assert not math.isfinite(found.value) and found.standard_error is None
    assert found.invalid is not None and "1 of 3 counted KL values are not finite" in found.invalid
    assert (found.max is None) == math.isnan(bad)


def test_under_the_mask_it_does_not_matter() -> None:
    kl, mask, group = rows_of([1.0, math.nan, 2.0])
    mask[1] = False
    found = read(kl, mask, group)
    assert (found.value, found.n_sequences, found.n_prompts, found.invalid) == (1.5, 2, 2, None)


def test_negative_within_noise_is_believed_and_beyond_it_is_not() -> None:
    within = read(*rows_of([-1.0, 0.5, -0.2, 0.3]), estimator="k1")
    assert within.value < 0 and within.invalid is None
    beyond = read(*rows_of([-1.0, -1.1, -0.9, -1.05]), estimator="k1")
    assert beyond.value == pytest.approx(-1.0125, rel=EXACT)
    assert beyond.invalid is not None and "negative beyond noise" in beyond.invalid


def test_one_prompt_cannot_excuse_a_negative_k1() -> None:
    kl, mask, _ = rows_of([-0.4, 0.1])
    found = read(kl, mask, np.array([7, 7]), estimator="k1")
    assert found.standard_error is None and found.invalid is not None and "one prompt" in found.invalid


def test_an_exact_kl_is_negative_only_by_rounding() -> None:
    """Noise between prompts excuses k1, not an estimator that cannot be negative."""
    assert read(*rows_of([-0.5 * ROUNDING, 0.0])).invalid is None
    found = read(*rows_of([-1.0, 0.9, -1.0, 0.9]))
    assert found.invalid is not None and "negative beyond noise" in found.invalid


def test_reasons_add_up() -> None:
    given_reason = read(*rows_of([1.0, 2.0]), invalid="sampled at temperature 0.7")
    assert given_reason.invalid == "sampled at temperature 0.7"
    both = read(*rows_of([1.0, math.nan]), invalid="sampled at temperature 0.7").invalid
    assert both is not None and both.startswith("sampled at temperature 0.7; 1 of 2")


def test_nothing_counted_is_an_error_not_a_zero() -> None:
    kl, mask, group = rows_of([1.0, 2.0])
    with pytest.raises(RunError, match="kl_ref cannot be measured"):
        read(kl, ~mask, group)


def test_a_mask_that_is_not_bool_is_refused() -> None:
    """Without the tests' type checker in the way, as a user meets it."""
    kl, mask, group = (torch.tensor(x) for x in rows_of([1.0, 2.0]))
    with pytest.raises(UsageError, match="must be bool"):
        inspect.unwrap(measure)(kl, mask.float(), group, kind="kl_ref", estimator="exact", unit="nats/token")


def test_reading_takes_no_part_in_a_graph() -> None:
    kl = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(4, 3, dtype=torch.bool)
    found = measure(kl, mask, torch.arange(4), kind="kl_old", estimator="k1", unit="nats/token")
    assert isinstance(found.value, float) and found.direction == "old policy||policy"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_values_are_summed_in_float64(dtype: torch.dtype) -> None:
    """3000 tokens of 1 nat: a running bf16 sum stops at 256, an fp16 one at 2048."""
    kl = torch.ones(2, 3000, dtype=dtype)
    mask = torch.ones(2, 3000, dtype=torch.bool)
    found = measure(kl, mask, torch.arange(2), kind="kl_ref", estimator="exact", unit="nats/sequence")
    assert found.value == 3000.0
