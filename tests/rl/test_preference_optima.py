"""Where preference losses end: tabular policies over sequences of one to three tokens, trained on every labelled pair.

A pair (i, j) is in the population once in either order, weighted by μ(i) μ(j) and the probability that i is preferred.
The optimum that theory states is computed without any of the losses, and the trained policy's is compared with it.
"""

import math
from functools import partial

import pytest
import torch
from tests.tabular import enumerate_sequences, random_logits, sequence_logprobs
from tests.tolerances import EXACT

from kleash.rl.kto import kto
from kleash.rl.pair_sums import Sides
from kleash.rl.preference_losses import conservative_dpo, dpo, exo, f_dpo, hinge, ipo, robust_dpo

E = enumerate_sequences(V=3, T=3, eos=0)
S = len(E.ids)
BETA, FLIP, ALPHA = 0.4, 0.2, 0.4
LENGTHS = E.mask.sum(1).double()


def reward(seed=5, size=1.0):
    return size * torch.randn(S, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bradley_terry(r):
    """P[i, j]: how often i is preferred to j."""
    return torch.sigmoid(r[:, None] - r[None, :])


def trained(loss, preferred, length="sum", density=None):
    """log π and log π_ref of every sequence, π at the minimum of the population's loss."""
    reference = sequence_logprobs(random_logits(1, E).detach(), E)
    logits = random_logits(1, E).detach().requires_grad_()
    i, j = (~torch.eye(S, dtype=torch.bool)).nonzero(as_tuple=True)
    density = torch.ones(S, dtype=torch.float64) if density is None else density
    weight = preferred[i, j] * density[i] * density[j] / S**2

    def objective(logits):
        ratio = sequence_logprobs(logits, E) - reference
        ratio = ratio / LENGTHS if length == "mean" else ratio
        return (weight * loss(Sides(ratio[i], ratio[j])).loss).sum()

    optimizer = torch.optim.LBFGS([logits], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        objective(logits).backward()
        return objective(logits)

    optimizer.step(closure)
    for _ in range(4):  # Newton's steps; a row of logits may be shifted as a whole, hence the pseudo-inverse
        slope = torch.func.grad(objective)(logits.detach()).reshape(-1)
        curvature = torch.func.hessian(objective)(logits.detach()).reshape(len(slope), -1)
        logits = logits.detach() - (torch.linalg.pinv(curvature, hermitian=True) @ slope).reshape(logits.shape)
    return sequence_logprobs(logits.detach(), E), reference


def gibbs(reference, r, beta=BETA):
    """log of ref·exp(r/β)/Z."""
    return (reference + r / beta).log_softmax(0)


def at_the_level(policy_of, low, high):
    """The policy whose c makes it sum to 1, by bisection: policy_of(c) is log π unnormalised, falling in c."""
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if float(policy_of(c).logsumexp(0)) > 0 else (low, c)
    return policy_of(high)


def close(found, truth):
    torch.testing.assert_close(found, truth, rtol=EXACT, atol=EXACT)


def test_dpo_ends_at_the_gibbs_posterior():
    """β log(π/π_ref) = r − β log Z for every sequence."""
    r = reward()
    policy, reference = trained(partial(dpo, beta=BETA), bradley_terry(r))
    log_z = (reference + r / BETA).logsumexp(0)
    close(BETA * (policy - reference), r - BETA * log_z)


def test_which_pairs_are_asked_does_not_move_dpo():
    r, density = reward(), torch.linspace(0.2, 2, S, dtype=torch.float64)
    policy, reference = trained(partial(dpo, beta=BETA), bradley_terry(r), density=density)
    close(policy, gibbs(reference, r))


def test_dpo_per_token_ends_at_a_posterior_of_its_own():
    """log π = log π_ref + length·(r − c)/β: the reward is a rate per token."""
    r = reward(size=0.3)
    policy, reference = trained(partial(dpo, beta=BETA), bradley_terry(r), length="mean")
    close(policy, at_the_level(lambda c: reference + LENGTHS * (r - c) / BETA, -20, 20))


#: f′, and its inverse, of u = π/π_ref; the reward level below which no policy exists (β times it, under max r).
F = {
    "forward_kl": (lambda x: -torch.log1p(-x), 1.0),
    "js": (lambda x: x - math.log(2) - torch.log1p(-x.exp() / 2), math.log(2)),
    "alpha": (lambda x: -torch.log1p(-ALPHA * x) / ALPHA, 1 / ALPHA),
}


@pytest.mark.parametrize("divergence", F)
def test_f_dpo_ends_at_its_own_posterior(divergence):
    """u = (f′)⁻¹((r − c)/β): log u is written out for each divergence, and x = (r − c)/β stays below its ceiling."""
    r = reward(size=0.3)
    log_u, ceiling = F[divergence]
    alpha = ALPHA if divergence == "alpha" else None
    policy, reference = trained(partial(f_dpo, beta=BETA, divergence=divergence, alpha=alpha), bradley_terry(r))
    lowest = float(r.max()) - BETA * ceiling * (1 - 1e-15)
    close(policy, at_the_level(lambda c: reference + log_u((r - c) / BETA), lowest, 20.0))


def test_ipo_ends_at_the_posterior_of_the_win_rate():
    """π ∝ π_ref exp(P(y beats the others)/β), for preferences that no reward explains, and any density of answers."""
    generator = torch.Generator().manual_seed(2)
    upper = torch.rand(S, S, generator=generator, dtype=torch.float64).triu(1)
    preferred = upper + (1 - upper.T).tril(-1) + torch.eye(S, dtype=torch.float64) / 2
    density = 0.2 + torch.rand(S, generator=generator, dtype=torch.float64)
    policy, reference = trained(partial(ipo, beta=BETA), preferred, density=density)
    win_rate = preferred @ density / density.sum()
    close(policy, gibbs(reference, win_rate))


def test_ipo_per_token_ends_at_a_posterior_of_its_own():
    preferred = bradley_terry(reward())
    policy, reference = trained(partial(ipo, beta=4.0), preferred, length="mean")
    win_rate = preferred.mean(1)
    close(policy, at_the_level(lambda c: reference + LENGTHS * (win_rate - c) / 4.0, -20, 20))


def flipped(preferred):
    return (1 - FLIP) * preferred + FLIP * preferred.T


def test_robust_dpo_sees_through_the_noise():
    """On labels of which a share FLIP was turned round it ends where DPO on the true ones does; plain DPO does not."""
    r = reward()
    policy, reference = trained(partial(robust_dpo, beta=BETA, flip=FLIP), flipped(bradley_terry(r)))
    close(policy, gibbs(reference, r))
    plain, _ = trained(partial(dpo, beta=BETA), flipped(bradley_terry(r)))
    assert (plain - gibbs(reference, r)).abs().max() > 0.1


def test_conservative_dpo_ends_at_the_posterior_of_smoothed_labels():
    """The preferences are such that, a share FLIP of them turned round, they follow Bradley–Terry on r."""
    r = reward(size=0.2)
    preferred = (bradley_terry(r) - FLIP) / (1 - 2 * FLIP)
    assert ((preferred >= 0) & (preferred <= 1)).all()
    policy, reference = trained(partial(conservative_dpo, beta=BETA, flip=FLIP), preferred)
    close(policy, gibbs(reference, r))


def expected_slope(loss, margin, preferred):
    """d/dz of P·loss(z) + (1 − P)·loss(−z), z the log-ratio of one answer over the other."""
    z = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros_like(z)
    value = preferred * loss(Sides(z, zero)).loss + (1 - preferred) * loss(Sides(zero, z)).loss
    return float(torch.autograd.grad(value.sum(), z)[0])


@pytest.mark.parametrize("preferred", [0.55, 0.7, 0.95])
def test_a_pairs_margin_under_exo(preferred):
    """β z = (2P − 1) log((1 − ε)/ε): linear in P, where Bradley–Terry's is log(P/(1 − P))."""
    loss = partial(exo, beta=BETA, smoothing=FLIP)
    margin = (2 * preferred - 1) * math.log((1 - FLIP) / FLIP) / BETA
    assert expected_slope(loss, margin, preferred) == pytest.approx(0, abs=EXACT)
    assert expected_slope(loss, margin - 0.1, preferred) < 0 < expected_slope(loss, margin + 0.1, preferred)


@pytest.mark.parametrize("preferred", [0.55, 0.7, 0.95])
def test_a_pairs_margin_under_hinge(preferred):
    """It ends at β z = 1 for whatever P above one half: a majority is all that it learns."""
    loss = partial(hinge, beta=BETA)
    assert expected_slope(loss, 1 / BETA - 0.1, preferred) < 0 < expected_slope(loss, 1 / BETA + 0.1, preferred)


@pytest.mark.parametrize("share", [0.1, 0.45, 0.55, 0.9])
def test_kto_pushes_a_text_without_end(share):
    """Its expected loss falls all along the log-ratio where λ_D P > λ_U (1 − P), and rises all along elsewhere."""
    weights = (1.5, 1.0)
    ratio = torch.linspace(-20, 20, 41, dtype=torch.float64, requires_grad=True)
    yes, no = (kto(ratio, torch.full((41,), label), 0.7, BETA, weights).loss for label in (True, False))
    (slope,) = torch.autograd.grad((share * yes + (1 - share) * no).sum(), ratio)
    assert (slope < 0).all() if weights[0] * share > weights[1] * (1 - share) else (slope > 0).all()
