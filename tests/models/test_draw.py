"""The keyed noise against plain integers and statistics; truncation and inverse CDF against slow exact loops."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.tolerances import EXACT
from torch import Tensor

from kleash.models.draw import NOISE_BITS, WEIGHT_BITS, distribution, draw, keyed_noise

TOP = 1 << NOISE_BITS
#: A fixed seed makes these tests deterministic; the level only says how surprised a sceptic would have to be.
LEVEL = 1e-3


# ── noise ───────────────────────────────────────────────────────────────────────────────────────────────


def splitmix64(state: int) -> int:
    """The first output of SplitMix64 from this state, in Python's unbounded integers."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_splitmix_is_the_published_one() -> None:
    """Reference values of the author's C code, which test suites of other languages print as well."""
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(1234567) == 6457827717110365317


def test_noise_equals_plain_integers() -> None:
    prompts = [0, 7, 2**40, 3]
    for seed, step in ((0, 0), (17, 3), (2**62 + 5, 10**9)):
        noise = keyed_noise(seed, step, prompts, 3, 5).view(4, 3, 5)
        for n, g, t in itertools.product(range(4), range(3), range(5)):
            key = 0
            for part in (seed, step, prompts[n], g, t):
                key = splitmix64(key ^ part)
            assert int(noise[n, g, t]) == key >> 64 - NOISE_BITS


def test_noise_depends_on_its_key_only() -> None:
    """Other prompts, a larger group, a longer completion: the numbers of a key stay."""
    alone = keyed_noise(1, 2, [5], 2, 4)
    among = keyed_noise(1, 2, [9, 5, 0], 6, 9).view(3, 6, 9)[1, :2, :4]
    assert torch.equal(alone, among)


def test_noise_is_uniform() -> None:
    u = keyed_noise(3, 0, list(range(50)), 40, 100).flatten().double() / TOP
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u.numpy(), "uniform").pvalue > LEVEL
    low_bits = keyed_noise(3, 0, list(range(50)), 40, 100).flatten() % 1024
    assert stats.chisquare(torch.bincount(low_bits, minlength=1024).numpy()).pvalue > LEVEL


def pairs(axis: str) -> tuple[Tensor, Tensor]:
    """Noise of keys that differ by one in one part only."""
    base = keyed_noise(4, 8, list(range(61)), 41, 81).view(61, 41, 81)
    match axis:
        case "seed":
            return base, keyed_noise(5, 8, list(range(61)), 41, 81).view_as(base)
        case "step":
            return base, keyed_noise(4, 9, list(range(61)), 41, 81).view_as(base)
        case "prompt":
            return base[:-1], base[1:]
        case "sample":
            return base[:, :-1], base[:, 1:]
    return base[..., :-1], base[..., 1:]


@pytest.mark.parametrize("axis", ["seed", "step", "prompt", "sample", "position"])
def test_noise_of_neighbouring_keys_is_independent(axis: str) -> None:
    first, second = (x.flatten() for x in pairs(axis))
    cells = (first >> NOISE_BITS - 5) * 32 + (second >> NOISE_BITS - 5)
    assert stats.chisquare(torch.bincount(cells, minlength=1024).numpy()).pvalue > LEVEL
    correlation = stats.pearsonr(first.double().numpy(), second.double().numpy())
    assert correlation.pvalue > LEVEL


# ── inverse CDF ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draw_equals_exact_fractions(dtype: torch.dtype) -> None:
    """Against the inverse CDF in exact fractions; within V·2⁻⁴⁰ of a step either side of it is right."""
    V = 50
    logprobs = (3 * torch.randn(400, V, dtype=dtype)).log_softmax(-1)
    noise = torch.randint(0, TOP, (400,))
    for row, number, token in zip(logprobs, noise.tolist(), draw(logprobs, noise).tolist(), strict=True):
        p = [Fraction(x) for x in row.exp().tolist()]
        u = Fraction(number, TOP) * sum(p)
        below, upto = sum(p[:token]), sum(p[: token + 1])
        slack = Fraction(V, 2**WEIGHT_BITS)
        assert below - slack <= u <= upto + slack


@given(
    st.lists(st.floats(-60, 0), min_size=1, max_size=12),
    st.sets(st.integers(0, 11)),
    st.one_of(st.sampled_from([0, 1, TOP // 2, TOP - 2, TOP - 1]), st.integers(0, TOP - 1)),
)
def test_draw_never_takes_what_cannot_be(logits: list[float], impossible: set[int], number: int) -> None:
    row = torch.tensor([logits])
    removed = [i for i in impossible if i < len(logits)]
    if len(removed) == len(logits):
        removed = removed[1:]
    row[:, removed] = -torch.inf
    token = int(draw(row.log_softmax(-1), torch.tensor([number])))
    assert 0 <= token < len(logits) and token not in removed


def test_draw_does_not_overrun_a_large_vocabulary() -> None:
    logprobs = torch.randn(4, 150_000).log_softmax(-1)
    logprobs[:, -1000:] = -torch.inf
    assert (draw(logprobs, torch.full((4,), TOP - 1)) < 149_000).all()
    assert (draw(logprobs, torch.zeros(4, dtype=torch.int64)) == 0).all()


def test_draws_follow_the_distribution() -> None:
    p = torch.tensor([0.5, 0.2, 0.0, 0.15, 0.1, 0.05], dtype=torch.float64)
    n = 200_000
    tokens = draw(p.log().expand(n, -1), keyed_noise(0, 0, [0], n, 1)[:, 0])
    count = torch.bincount(tokens, minlength=6)
    assert count[2] == 0
    seen = p > 0
    assert stats.chisquare(count[seen].numpy(), (n * p[seen]).numpy()).pvalue > LEVEL


# ── temperature, top-k, top-p ───────────────────────────────────────────────────────────────────────────


def slow(logits: list[float], temperature: float, k: int, p: float, forbidden: tuple[int, ...]) -> list[float]:
    """Log-probs by plain loops: weigh, strike out, rank, keep, renormalise."""
    weight = [0.0 if i in forbidden else math.exp(x / temperature) for i, x in enumerate(logits)]
    if k:
        rank = sorted(range(len(weight)), key=lambda i: -weight[i])
        weight = [w if i in rank[:k] else 0.0 for i, w in enumerate(weight)]
    total, reached, kept = sum(weight), 0.0, set()
    for i in sorted(range(len(weight)), key=lambda i: -weight[i]):
        if reached < p * total or p == 1:
            kept.add(i)
        reached += weight[i]
    total = sum(weight[i] for i in kept)
    return [math.log(w / total) if i in kept and w else -math.inf for i, w in enumerate(weight)]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(("k", "p"), [(0, 1.0), (3, 1.0), (0, 0.6), (4, 0.8), (1, 1.0), (0, 1e-6), (99, 1.0)])
@pytest.mark.parametrize("forbidden", [(), (2,), (0, 5)])
def test_truncation_equals_slow_loop(temperature: float, k: int, p: float, forbidden: tuple[int, ...]) -> None:
    logits = 2 * torch.randn(40, 9, dtype=torch.float64)
    before = logits.clone()
    ours = distribution(logits, temperature=temperature, top_k=k, top_p=p, forbidden=forbidden)
    expected = torch.tensor([slow(row, temperature, k, p, forbidden) for row in logits.tolist()], dtype=torch.float64)
    torch.testing.assert_close(ours, expected, rtol=0, atol=EXACT)
    assert torch.equal(logits, before)


def test_ties_are_kept_together() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]])
    for kept in (distribution(logits, top_k=2), distribution(logits, top_p=0.75)):
        assert (kept[0].exp() > 0).tolist() == [True, True, True, True, False]
