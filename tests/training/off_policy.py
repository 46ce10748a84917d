"""Samples of the policy as it was, gradient after it has moved by a known step: the second epoch of the real loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.enumerated import (
    BETA,
    C,
    Setting,
    gradient,
    logits_of,
    objective,
    pairs,
    run_step,
    small_policy,
    token_logprobs,
)
from torch import Tensor

from kleash.models.policy import Policy


def move(policy: Policy, size: float) -> list[Tensor]:
    random = torch.Generator().manual_seed(5)
    return [size * torch.randn(p.shape, generator=random, dtype=p.dtype) for p in policy.trainable()]


def moved_policy(size: float) -> Policy:
    policy = small_policy(1)
    with torch.no_grad():
        for parameter, delta in zip(policy.trainable(), move(policy, size), strict=True):
            parameter.add_(delta)
    return policy


def size_for(kl: float) -> float:
    """The scale of the move at which KL(old‖new) per sequence is `kl`, by bisection."""
    p = token_logprobs(logits_of(small_policy(1))).sum(1).detach()
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        q = token_logprobs(logits_of(moved_policy(middle))).sum(1).detach()
        low, high = (middle, high) if float((p.exp() * (p - q)).sum()) < kl else (low, middle)
    return low


def off_policy(
    algorithm: Any, penalty: Any, reward: Tensor, kl: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """(gradient of the second epoch, taken on samples of the first policy; −∇J / C at the moved policy)."""
    size = size_for(kl)
    policy, reference, moved = small_policy(1), small_policy(2), moved_policy(size)
    truth = -gradient(objective(moved, reference, BETA, reward), moved) / C
    setting = Setting(algorithm, penalty, reward=reward, moves=[move(policy, size)])
    return run_step(setting, policy, reference, pairs(policy), tmp_path, monkeypatch).seen[1], truth
