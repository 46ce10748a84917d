"""GRPO's ways to average and to scale, enumerated: the cosine between the mean gradient of each and the true one.

Written from the formulas, not from kleash.algorithms: a group of G sequences with leave-one-out credit for reward and
KL to come (members alive at the position only), and the exact KL_t as the token's own term.
"""

from itertools import product

import torch
from benchmarks.forms import Scene
from tests.tabular import each_gradient, probabilities, to_go
from torch import Tensor

MODES = (
    'length = "constant"',
    'length = "sequence_mean"',
    'length = "token_mean"',
    'std = "group"',
    'length = "sequence_mean", std = "group"',
)


def true_gradient(s: Scene, reward: Tensor, beta: float) -> Tensor:
    """∇[E R − β KL(sequence)], flat."""
    score = each_gradient(s.log_p.sum(1), s.policy)
    return ((s.weight * reward)[:, None] * score).sum(0) - beta * s.target.flatten()


def mode_gradient(s: Scene, reward: Tensor, beta: float, mode: str, G: int) -> Tensor:
    """Mean ascent direction over all ordered groups of G, flat; by symmetry, that of the first member times G."""
    mask, P = s.e.mask.double(), probabilities(s.policy, s.e)
    others = torch.tensor(list(product(range(len(P)), repeat=G - 1)))
    come = (to_go(s.kl) - s.kl).detach()
    alive = mask[others].sum(1)
    baseline = (mask[others] * come[others]).sum(1) / alive.clamp(min=1)

    credit = reward[:, None] - reward[others].mean(1)
    if "std" in mode:
        members = torch.cat(
            [reward[:, None, None].expand(-1, len(others), 1), reward[others].expand(len(P), -1, -1)], 2
        )
        sigma = members.std(2, correction=0)
        credit = torch.where(sigma > 0, credit / sigma.clamp(min=1e-300), 0.0)
    token_credit = credit[..., None] - beta * (come[:, None] - baseline)

    length = mask.sum(1)
    scale = torch.ones_like(credit)
    if "sequence_mean" in mode:
        scale = scale / length[:, None]
    if "token_mean" in mode:
        scale = scale / (length[:, None] + length[others].sum(1))
    weight = P[:, None] * P[others].prod(1) * scale
    score, own = each_gradient(s.log_p, s.policy), each_gradient(s.kl, s.policy)
    by_token = torch.einsum("im,imt->it", weight, token_credit)
    return torch.einsum("it,itd->d", by_token, score) - beta * torch.einsum("i,itd->d", weight.sum(1), own)


def alignment(a: Tensor, b: Tensor) -> float:
    """The cosine between two flat gradients."""
    return float((a @ b) / (a.norm() * b.norm()))
