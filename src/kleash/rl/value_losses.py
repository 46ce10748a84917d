"""How a value function is fitted, and how well it fits."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.masked import masked_mean


class ValueLoss(NamedTuple):
    """loss: per token, live. clipped: where the bounded value is the worse one, so that the gradient is zero."""

    loss: Float[Tensor, "B T"]
    clipped: Bool[Tensor, "B T"]


def clipped_value_loss(
    values: Float[Tensor, "B T"],
    old: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    clip: float | None,
) -> ValueLoss:
    """½ max[(V − G)², (V_old + clip(V − V_old, ±ε) − G)²] per token; clip None: ½ (V − G)².

    Source: openai/baselines ppo2 and lm-human-preferences train_policy.py (the form InstructGPT's PPO descends from).
    Proved by: tests/rl/test_value_losses.py::test_clipped_value_loss_equals_slow_loop
    """
    plain = (values - returns).square()
    if clip is None:
        return ValueLoss(plain / 2, torch.zeros_like(values, dtype=torch.bool))
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    return ValueLoss(torch.maximum(plain, bounded) / 2, bounded > plain)


def explained_variance(
    values: Float[Tensor, "B T"], returns: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> float | None:
    """1 − Var(G − V) / Var(G) over the tokens that count: 1 is perfect, 0 no better than a constant, below 0 worse.

    None where the returns do not vary.

    Source: openai/baselines common/math_util.py.
    Proved by: tests/rl/test_value_losses.py::test_explained_variance_equals_numpy
    """
    if not mask.any():
        return None
    spread = masked_mean((returns - masked_mean(returns, mask)).square(), mask)
    error = returns - values
    residual = masked_mean((error - masked_mean(error, mask)).square(), mask)
    return float(1 - residual / spread) if spread > 0 else None
