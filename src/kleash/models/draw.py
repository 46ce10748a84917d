"""One draw from a categorical distribution: keyed noise, temperature / top-k / top-p, inverse CDF. Pure tensors.

From the log-probs on, a draw is integer arithmetic: probabilities become whole multiples of 2⁻⁴⁰ and the noise is a
whole number below 2⁴⁴. Sums of integers have no rounding, so the same log-probs give the same token on every device,
in every batch; a token of probability 0 has weight 0 and cannot be drawn; the last token cannot be overrun.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

NOISE_BITS = 44
WEIGHT_BITS = 40  # weights · half the noise bits stays below 2⁶³
_LIMB = NOISE_BITS // 2


def keyed_noise(seed: int, step: int, prompts: list[int], group_size: int, length: int) -> Int[Tensor, "B T"]:
    """Uniform whole numbers in [0, 2⁴⁴), each a function of (seed, step, prompt, sample, position) and of nothing else.

    Row n·G + g belongs to sample g of prompt `prompts[n]`. The key's parts are absorbed one after the other, each
    followed by the SplitMix64 finaliser (a bijection of 64 bits), so two keys that differ in one part never collide.

    Source: Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64's mix64).
    Proved by: tests/models/test_draw.py::test_noise_equals_plain_integers
    """
    prompt = torch.tensor(prompts, dtype=torch.int64)[:, None, None]
    key = torch.zeros((), dtype=torch.int64)
    for part in (
        torch.tensor(seed),
        torch.tensor(step),
        prompt,
        torch.arange(group_size)[:, None],
        torch.arange(length),
    ):
        key = _mix((key ^ part) + _signed(0x9E3779B97F4A7C15))
    return (key >> (64 - NOISE_BITS) & ((1 << NOISE_BITS) - 1)).flatten(0, 1)


def _mix(z: Int[Tensor, "*s"]) -> Int[Tensor, "*s"]:
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Int[Tensor, "*s"], bits: int) -> Int[Tensor, "*s"]:
    """The logical right shift; torch's own carries the sign down."""
    return z >> bits & ((1 << 64 - bits) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of this unsigned word; int64 products and sums wrap modulo 2⁶⁴."""
    return word - (1 << 64) if word >> 63 else word


def distribution(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden: tuple[int, ...] = (),
) -> Float[Tensor, "B V"]:
    """Log-probs (nats) of what is drawn from: temperature, forbidden tokens, then top-k, then top-p; the rest is −inf.

    top_k 0 and top_p 1 leave everything. Tokens tied with the last one kept are kept, so that the result does not
    depend on how a sort orders ties. top-p keeps the fewest likeliest tokens that together reach `top_p`.

    Source: Fan et al. 2018, arXiv 1805.04833 (top-k); Holtzman et al. 2020, arXiv 1904.09751 (top-p).
    Proved by: tests/models/test_draw.py::test_truncation_equals_slow_loop
    """
    logits = logits / temperature
    if forbidden:
        logits[:, list(forbidden)] = -torch.inf
    if 0 < top_k < logits.shape[-1]:
        last = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < last, -torch.inf)
    if top_p < 1:
        weights = _weights(logits.log_softmax(-1))
        ranked = weights.sort(descending=True).values
        before = ranked.cumsum(-1) - ranked
        needed = before < top_p * ranked.sum(-1, keepdim=True)
        last = ranked.gather(-1, needed.sum(-1, keepdim=True) - 1)
        logits = logits.masked_fill(weights < last, -torch.inf)
    return logits.log_softmax(-1)


def draw(logprobs: Float[Tensor, "B V"], noise: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The token at which the cumulative weight first exceeds noise/2⁴⁴ of the total: inverse CDF, one number a draw.

    Rounding to multiples of 2⁻⁴⁰ moves at most V·2⁻⁴⁰ of probability (V = 150,000: 1.4e-7, below fp32's own error).

    Proved by: tests/models/test_draw.py::test_draw_equals_exact_fractions
    """
    cumulative = _weights(logprobs).cumsum(-1)
    total = cumulative[:, -1]
    # ⌊noise · total / 2⁴⁴⌋ in two limbs of the noise: the whole product would need 84 bits
    high, low = noise >> _LIMB, noise & ((1 << _LIMB) - 1)
    threshold = (high * total + (low * total >> _LIMB)) >> _LIMB
    return torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]


def _weights(logprobs: Float[Tensor, "B V"]) -> Int[Tensor, "B V"]:
    """Probabilities in whole multiples of 2⁻⁴⁰ (scaling by a power of two is exact, the cast rounds down)."""
    return (logprobs.exp() * 2.0**WEIGHT_BITS).long()
