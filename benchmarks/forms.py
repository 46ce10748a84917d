"""What a KL penalty can be made of, per token: exact mean and scatter over every sequence of a tabular model."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tests.tabular import (
    Sequences,
    at_distance,
    each_gradient,
    expected_gradient,
    position_kl,
    probabilities,
    random_logits,
    sequence_kl,
    to_go,
    token_logprobs,
)
from torch import Tensor

from kleash.kl.estimators import k1, k2, k3


class Scene(NamedTuple):
    """A policy, a reference and a sampler μ (the policy itself when on-policy), with what every form is made of.

    All [S, T] and 0 where no token counts: log_p and x = log π − log π_ref live, kl the exact KL_t live, rho = π/μ
    live. weight [S] is μ's probability of each sequence.
    """

    policy: Tensor
    e: Sequences
    weight: Tensor
    log_p: Tensor
    x: Tensor
    kl: Tensor
    rho: Tensor
    target: Tensor
    value: float


def scene(seed: int, e: Sequences, distance: float, *, off_policy: bool = False) -> Scene:
    policy, reference = at_distance(seed, e, distance)
    mu = policy.detach() + (0.5 * random_logits(1000 + seed, e).detach() if off_policy else 0.0)
    log_p = token_logprobs(policy, e)
    total = sequence_kl(policy, reference, e)
    return Scene(
        policy=policy,
        e=e,
        weight=probabilities(mu, e),
        log_p=log_p,
        x=log_p - token_logprobs(reference, e),
        kl=position_kl(policy, reference, e),
        rho=(log_p - token_logprobs(mu, e)).exp(),
        target=torch.autograd.grad(total, policy, retain_graph=True)[0],
        value=float(total.detach()),
    )


def counted(s: Scene, fn: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(s.e.mask, fn(s.x), 0.0)


def credit(log_p: Tensor, reward: Tensor, *, own: bool = True) -> Tensor:
    """log π · (detached) reward-to-go; without `own`, only what comes after the token."""
    return log_p * (to_go(reward) if own else to_go(reward) - reward).detach()


def full_off_policy(s: Scene) -> Tensor:
    """ρ_{1:t} s_t F_t + ρ_{<t} ∇KL_t with F_t = KL_{t+1} + ρ_{t+1} F_{t+1}: kleash's `exact`, off-policy."""
    rho, kl = s.rho.detach(), s.kl.detach()
    come = torch.zeros_like(kl)
    for t in range(s.e.T - 2, -1, -1):
        come[:, t] = kl[:, t + 1] + rho[:, t + 1] * come[:, t + 1]
    return rho.cumprod(1) * come * s.log_p + before(rho) * s.kl


def before(rho: Tensor) -> Tensor:
    """ρ_{<t}."""
    return torch.cat([torch.ones_like(rho[:, :1]), rho.cumprod(1)[:, :-1]], 1)


#: Every per-token form, [S, T]. "to go" is in the reward; the others stand in the loss.
FORMS: dict[str, Callable[[Scene], Tensor]] = {
    "k1 loss": lambda s: counted(s, k1),
    "k2 loss": lambda s: counted(s, k2),
    "k1 reward, own token only": lambda s: s.log_p * s.x.detach(),
    "exact KL_t loss": lambda s: s.kl,
    "ρ_t·k3 loss": lambda s: s.rho * counted(s, k3),
    "k3 loss (GRPO)": lambda s: counted(s, k3),
    "k2 reward to go": lambda s: credit(s.log_p, counted(s, k2)),
    "k3 reward to go": lambda s: credit(s.log_p, counted(s, k3)),
    "k1 reward to go": lambda s: credit(s.log_p, s.x),
    "k1 reward to go, token ratio": lambda s: s.rho * to_go(s.x).detach(),
    "k3 loss + k3 reward to go": lambda s: counted(s, k3) + credit(s.log_p, counted(s, k3)),
    "k2 loss + k1 to come": lambda s: counted(s, k2) + credit(s.log_p, s.x, own=False),
    "exact KL_t loss + exact to come": lambda s: s.kl + credit(s.log_p, s.kl, own=False),
    "ρ_{1:t}·k1_t loss": lambda s: s.rho.cumprod(1) * s.x,
    "ρ_{1:t}·k3_t loss": lambda s: s.rho.cumprod(1) * counted(s, k3),
    "ρ_{<t}·exact KL_t loss": lambda s: before(s.rho) * s.kl,
    "exact, full off-policy form": full_off_policy,
}
EXACT_OFF_POLICY = ("ρ_{1:t}·k1_t loss", "ρ_{1:t}·k3_t loss", "ρ_{<t}·exact KL_t loss", "exact, full off-policy form")
EXACT_ON_POLICY = (
    "k1 reward to go",
    "k1 reward to go, token ratio",
    "k3 loss + k3 reward to go",
    "k2 loss + k1 to come",
    "exact KL_t loss + exact to come",
    *EXACT_OFF_POLICY,
)
#: The four names of Σ_t E_prefix ∇KL(π_t ‖ ref_t).
PER_POSITION = ("k2 loss", "k1 reward, own token only", "exact KL_t loss", "ρ_t·k3 loss")


def mean_gradient(s: Scene, form: str) -> Tensor:
    return expected_gradient(FORMS[form](s).sum(1), s.policy, s.weight)


def relative_error(s: Scene, form: str) -> float:
    return float((mean_gradient(s, form) - s.target).norm() / s.target.norm())


def cosine(s: Scene, form: str) -> float:
    found = mean_gradient(s, form)
    return float((found * s.target).sum() / (found.norm() * s.target.norm()))


def scatter(weight: Tensor, each: Tensor) -> float:
    """tr Cov of a random vector: weight [n], each [n, d]."""
    mean = (weight[:, None] * each).sum(0)
    return float((weight * (each - mean).square().sum(1)).sum())


def gradient_scatter(s: Scene, form: str) -> float:
    return scatter(s.weight, each_gradient(FORMS[form](s).sum(1), s.policy))


def value_rows(s: Scene) -> dict[str, Tensor]:
    """One sample's estimate of the sequence's KL, [S], by each estimator."""
    total = s.x.sum(1)
    rows = {"k1": total, "k2, token sum": counted(s, k2).sum(1), "k3, token sum": counted(s, k3).sum(1)}
    return {name: row.detach() for name, row in {**rows, "k3, sequence": k3(total), "exact": s.kl.sum(1)}.items()}


def group_gradient_scatter(s: Scene, *, exact: bool, baseline: bool) -> tuple[float, float]:
    """tr Cov and relative bias of a group of two's mean gradient; the baseline is the other member's, time-aligned.

    The baseline of token t is the other's KL-to-go (to come) at t if the other is still alive there, else 0.
    """
    reward = s.kl.detach() if exact else s.x.detach()
    come = to_go(reward) - reward if exact else to_go(reward)
    score = torch.where(s.e.mask[..., None], each_gradient(s.log_p, s.policy), 0.0)
    alone = torch.einsum("itd,it->id", score, come)
    alone = alone + (each_gradient(s.kl.sum(1), s.policy) if exact else 0.0)
    pair = alone[:, None].expand(-1, len(alone), -1)
    if baseline:
        pair = pair - torch.einsum("itd,jt->ijd", score, torch.where(s.e.mask, come, 0.0))
    each = ((pair + pair.transpose(0, 1)) / 2).flatten(0, 1)
    weight = (s.weight[:, None] * s.weight).flatten()
    bias = (weight[:, None] * each).sum(0) - s.target.flatten()
    return scatter(weight, each), float(bias.norm() / s.target.norm())
