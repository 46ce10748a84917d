"""Importance ratios, surrogates and the ways a sum over tokens becomes one number."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Length = Literal["constant", "sequence_mean", "token_mean"]


def sequence_ratio(
    logprobs: Float[Tensor, "B T"], old: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """(π(y)/π_old(y))^(1/|y|) of each sequence, live, the same at each of its tokens; 1 for one without tokens.

    Source: Zheng et al. 2025 (GSPO), arXiv 2507.18071 eq. 7.
    Proved by: tests/rl/test_policy_losses.py::test_sequence_ratio_equals_slow_loop
    """
    log_token = torch.where(mask, logprobs - old, 0.0)
    mean = log_token.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)  # a row without tokens has sum 0
    return mean.exp().expand(mask.shape)


class Surrogate(NamedTuple):
    """loss: per-token, live (to be minimised). clipped: where a bound was met (PPO's: the gradient is zero there)."""

    loss: Float[Tensor, "B T"]
    clipped: Bool[Tensor, "B T"]


def clipped_surrogate(
    ratio: Float[Tensor, "B T"], advantage: Float[Tensor, "B T"], clip: tuple[float, float] | None
) -> Surrogate:
    """−min(ρ A, clip(ρ, 1−ε_low, 1+ε_high) A) per token; clip None: −ρ A.

    Source: Schulman et al. 2017 (PPO), arXiv 1707.06347 eq. 7; two sides: DAPO, arXiv 2503.14476 eq. 10.
    Proved by: tests/rl/test_policy_losses.py::test_clipped_surrogate_by_cases
    """
    plain = ratio * advantage
    if clip is None:
        return Surrogate(-plain, torch.zeros_like(ratio, dtype=torch.bool))
    bounded = ratio.clamp(1 - clip[0], 1 + clip[1]) * advantage
    return Surrogate(-torch.minimum(plain, bounded), bounded < plain)


def weighted_logprobs(
    ratio: Float[Tensor, "B T"],
    logprobs: Float[Tensor, "B T"],
    advantage: Float[Tensor, "B T"],
    clip: tuple[float, float] | None,
) -> Surrogate:
    """−sg(clip(ρ, 1−ε_low, 1+ε_high)) A ℓ per token: the weight is bounded, and every token keeps its gradient.

    Source: MiniMax 2025 (CISPO), arXiv 2506.13585 eq. 4–5.
    Proved by: tests/rl/test_policy_losses.py::test_weighted_logprobs_by_cases
    """
    weight = ratio.detach()
    bounded = weight if clip is None else weight.clamp(1 - clip[0], 1 + clip[1])
    return Surrogate(-bounded * advantage * logprobs, bounded != weight)


def reduce_tokens(
    per_token: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    length: Length,
    *,
    sequences: int,
    tokens: int,
    constant: int,
) -> Float[Tensor, ""]:
    """One number from per-token losses; the totals are those of the whole minibatch, so microbatches add up.

    constant: Σ / (sequences · constant), the only one whose gradient is that of a sequence objective.
    sequence_mean: mean over sequences of the mean over tokens. token_mean: Σ / tokens.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783; GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476.
    Proved by: tests/rl/test_policy_losses.py::test_reduce_tokens_equals_slow_loop
    """
    x = torch.where(mask, per_token, 0.0)
    if length == "constant":
        return x.sum() / (sequences * constant)
    if length == "token_mean":
        return x.sum() / tokens
    lengths = mask.sum(1).clamp_min(1)  # a row without tokens has sum 0
    return (x.sum(1) / lengths).sum() / sequences
