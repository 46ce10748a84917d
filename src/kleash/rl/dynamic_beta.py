"""beta-DPO's dynamic beta: one for the whole step, from how far apart its pairs are, and which pairs the step keeps."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class GapStatistics(NamedTuple):
    """Running mean and standard deviation of the gap, in nats: what is remembered between steps."""

    mean: float
    std: float


class DynamicBeta(NamedTuple):
    """beta: of this step. keep: which of its pairs are trained on. floored: whether beta met its floor."""

    beta: float
    keep: Bool[Tensor, " N"]
    statistics: GapStatistics
    floored: bool


class BetaRule(NamedTuple):
    """beta0: the fixed beta. alpha: per nat. momentum: of the running figures. keep: share of pairs. floor: of beta."""

    beta0: float
    alpha: float
    momentum: float
    keep: float
    floor: float


def dynamic_beta(
    gap: Float[Tensor, " N"], rule: BetaRule, before: GapStatistics | None, generator: torch.Generator
) -> DynamicBeta:
    """β = max(floor, β0 [1 + α (mean gap of the kept pairs − M0)]), gap = log-ratio of the chosen − of the other, nats.

    M0 and σ are running means of the batch's mean and standard deviation, this batch in them (the first batch's own,
    before it nothing is known). The kept pairs are drawn without replacement with weights exp(−(gap − M0)²/2σ²): those
    near the usual gap. `generator` (on the CPU) draws; without spread every pair is as likely. The gap is in nats, as
    in the authors' code, not times β0.

    Source: Wu et al. 2024 (beta-DPO), arXiv 2407.08639; its code: github.com/junkangwu/beta-DPO, trainers.py.
    Proved by: tests/rl/test_dynamic_beta.py::test_equals_the_authors_rule
    """
    gap = gap.detach().to("cpu", torch.float64)
    mean, std = float(gap.mean()), float(gap.std()) if len(gap) > 1 else 0.0
    if before is not None:
        m = rule.momentum
        mean, std = m * before.mean + (1 - m) * mean, m * before.std + (1 - m) * std
    log_weight = -0.5 * ((gap - mean) / std).square() if std > 0 else torch.zeros_like(gap)
    # The k largest of log w + Gumbel noise are k draws without replacement, also where every w underflows.
    uniform = torch.rand(len(gap), generator=generator, dtype=torch.float64)
    order = (log_weight - torch.log(-torch.log(uniform))).argsort(descending=True)
    keep = torch.zeros(len(gap), dtype=torch.bool)
    keep[order[: max(1, int(rule.keep * len(gap)))]] = True
    beta = rule.beta0 * (1 + rule.alpha * (float(gap[keep].mean()) - mean))
    return DynamicBeta(max(beta, rule.floor), keep, GapStatistics(mean, std), beta < rule.floor)
