"""Credit with a value function: rewards per token, and generalised advantages over the tokens that count.

Tokens outside the mask (padding, a tool's words) are stepped over: "next" means the next token that counts.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.masked import require_bool


class Advantages(NamedTuple):
    """Both [B, T], 0 outside the mask. returns: what the value should have been, advantage + value."""

    advantage: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]


def next_counted(x: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """x at the next token that counts, 0 at the last one and where the mask is False.

    Source: the definition.
    Proved by: tests/rl/test_gae.py::test_token_rewards_equal_slow_loop
    """
    require_bool(mask)
    T = mask.shape[1]
    place = torch.where(mask, torch.arange(T, device=mask.device), T)
    here_or_later = place.flip(1).cummin(1).values.flip(1)
    later = torch.cat([here_or_later[:, 1:], torch.full_like(place[:, :1], T)], 1)
    padded = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    return torch.where(mask, padded.gather(1, later), 0.0)


def token_rewards(
    score: Float[Tensor, " B"], to_go: Float[Tensor, "B T"] | None, mask: Bool[Tensor, "B T"], beta: float
) -> Float[Tensor, "B T"]:
    """r_t = 1[last]·R − β (F_t − F_{t+1}), from a penalty's charge to come F (nats; None: no charge in the reward).

    The sampled k1 charges x_t at its own token, as InstructGPT does. The exact KL charges K_{t+1} at token t, which
    led to that state, and nothing at the last: K_t itself stands in the loss.

    Source: Ziegler et al. 2019, arXiv 1909.08593 §2.1; Ouyang et al. 2022, arXiv 2203.02155 eq. 2.
    Proved by: tests/rl/test_gae.py::test_token_rewards_equal_slow_loop
    """
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    reward = torch.where(last, score[:, None], 0.0)
    if to_go is None:
        return reward
    return reward - beta * torch.where(mask, to_go - next_counted(to_go, mask), 0.0)


def generalised_advantages(
    reward: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    gamma: float,
    gae_lambda: float,
    importance: Float[Tensor, "B T"] | None = None,
) -> Advantages:
    """δ_t = r_t + γ V_{t+1} − V_t;  A_t = δ_t + γ λ ρ_{t+1} A_{t+1};  V is 0 after the last token.

    With γ = λ = 1 and ρ = 1, A_t = Σ_{n≥t} r_n − V_t: the gradient is right for any V. `importance`: π/μ of each
    token, for samples of an older policy μ; V then still cancels in expectation, for E_μ[ρ_{t+1} | y_{≤t}] = 1.

    Source: Schulman et al. 2016 (GAE), arXiv 1506.02438 eq. 16; ratios per decision: Precup et al. 2000.
    Proved by: tests/rl/test_gae.py::test_advantages_equal_slow_loop
    """
    delta = reward + gamma * next_counted(values, mask) - values
    ratio = torch.ones_like(reward) if importance is None else importance
    columns: list[Tensor] = []
    advantage, next_ratio = torch.zeros_like(reward[:, 0]), torch.ones_like(reward[:, 0])
    for t in range(mask.shape[1] - 1, -1, -1):
        counts = mask[:, t]
        advantage = torch.where(counts, delta[:, t] + gamma * gae_lambda * next_ratio * advantage, advantage)
        next_ratio = torch.where(counts, ratio[:, t], next_ratio)
        columns.append(torch.where(counts, advantage, 0.0))
    found = torch.stack(columns[::-1], 1)
    return Advantages(found, torch.where(mask, found + values, 0.0))
