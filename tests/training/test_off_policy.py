"""What each form of the KL's ratios computes on samples of an older policy: the real loop, enumerated at T > 1."""

import pytest
import torch
from tests.tolerances import LOOP
from tests.training.enumerated import (
    BETA,
    SPACE,
    C,
    S,
    T,
    gradient,
    logits_of,
    small_policy,
    token_logprobs,
)
from tests.training.off_policy import moved_policy, off_policy, size_for
from torch import Tensor

from kleash.algorithms import RLOO
from kleash.kl.penalties import Exact, InReward

NO_REWARD = torch.zeros(S, dtype=torch.float64)
PENALTIES = {"exact": Exact, "in_reward": InReward}


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@pytest.mark.slow
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_sequence_ratio_is_exact_until_it_truncates(penalty, tmp_path, monkeypatch):
    algorithm = RLOO(group_size=2, epochs=2, prefix_cap=1000.0)
    found, truth = off_policy(
        algorithm, PENALTIES[penalty](importance="sequence"), NO_REWARD, 0.57, tmp_path, monkeypatch
    )
    assert relative(found, truth) < LOOP


def frozen_states(kl: float, *, sampled: bool) -> Tensor:
    """β/C · Σ_h μ(h) [ ∇K_h + Σ_y ∇π(y|h) E_μ[charges after y] ]: the policy changes at one state, the rest stays μ's.

    By recursion over the tree of prefixes. sampled: a later state is charged Σ_v μ(v) x(v), what a sampled k1 is there
    in the mean, and not its K.
    """
    old, reference, policy = small_policy(1), small_policy(2), moved_policy(size_for(kl))
    place = {tuple(SPACE.ids[s, :t].tolist()): (s, t) for s in range(S) for t in range(T) if SPACE.mask[s, t]}
    mu, p = logits_of(old).detach().exp(), logits_of(policy)
    x = p - logits_of(reference).detach()
    own = (p.exp() * x).sum(-1)
    later = (mu * x).sum(-1) if sampled else own

    def to_come(prefix: tuple[int, ...]) -> float:
        if prefix not in place:  # it has ended
            return 0.0
        at = place[prefix]
        return float(later[at].detach()) + sum(
            float(chance) * to_come((*prefix, v)) for v, chance in enumerate(mu[at].tolist())
        )

    total = torch.zeros((), dtype=torch.float64)
    for prefix, (s, t) in place.items():
        reached = 1.0
        for n, token in enumerate(prefix):
            reached *= float(mu[s, n, token])
        credit = torch.tensor([to_come((*prefix, v)) for v in range(p.shape[-1])], dtype=torch.float64)
        total = total + reached * (own[s, t] + (p[s, t].exp() * credit).sum())
    return BETA * gradient(total, policy) / C


@pytest.mark.slow
@pytest.mark.parametrize("penalty", PENALTIES)
def test_the_token_ratio_computes_the_gradient_at_frozen_states(penalty, tmp_path, monkeypatch):
    algorithm = RLOO(group_size=2, epochs=2, prefix_cap=100.0)
    made = PENALTIES[penalty](importance="token")
    found, truth = off_policy(algorithm, made, NO_REWARD, 0.13, tmp_path, monkeypatch)
    assert relative(found, frozen_states(0.13, sampled=penalty != "exact")) < LOOP
    assert relative(found, truth) > 0.1, "it is not the gradient of the KL"


def capped(importance: str, kl: float, cap: float) -> Tensor:
    """β/C · E_μ of the truncated form, written as plain sums; a baseline is the mean over the one other member."""
    old, reference, policy = small_policy(1), small_policy(2), moved_policy(size_for(kl))
    mu, p = logits_of(old).detach(), logits_of(policy)
    each = torch.where(SPACE.mask, (p.exp() * (p - logits_of(reference).detach())).sum(-1), 0.0)
    logprob, was = token_logprobs(p), token_logprobs(mu)
    rho = (logprob - was).detach().exp()
    chance = was.sum(1).exp()
    before, through, score = (torch.ones_like(rho) for _ in range(3))
    for t in range(T):
        if importance == "prefix":
            before[:, t], through[:, t] = rho[:, :t].prod(1), rho[:, : t + 1].prod(1)
        elif importance == "sequence":
            before[:, t] = through[:, t] = rho.prod(1)
        else:
            score[:, t] = rho[:, t]
    before, through, score = (x.clamp_max(cap) for x in (before, through, score))
    charge = before * each.detach()
    come = torch.stack([score[:, t] * charge[:, t + 1 :].sum(1) for t in range(T)], 1)
    mean = (chance[:, None] * torch.where(SPACE.mask, come, 0.0)).sum(0)
    total = before * each + (come - score * through * mean) * logprob
    return BETA * gradient((chance * torch.where(SPACE.mask, total, 0.0).sum(1)).sum(), policy) / C


@pytest.mark.slow
@pytest.mark.parametrize("importance", ["prefix", "sequence", "token"])
def test_truncation_computes_what_its_formula_says(importance, tmp_path, monkeypatch):
    algorithm = RLOO(group_size=2, epochs=2, prefix_cap=1.2)
    found, truth = off_policy(algorithm, Exact(importance=importance), NO_REWARD, 0.13, tmp_path, monkeypatch)
    assert relative(found, capped(importance, 0.13, 1.2)) < LOOP
    assert relative(found, truth) > 1e-2
