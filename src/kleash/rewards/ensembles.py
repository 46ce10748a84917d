"""Several rewards of the same thing as one: what they agree on counts, what only one of them likes counts less."""

import math
from collections.abc import Sequence
from typing import Literal

Combine = Literal["mean", "min", "uwo"]

#: Lambda of UWO where none is given: Coste et al.'s for PPO.
UWO_LAMBDA = 0.1


def mean(scores: Sequence[float]) -> float:
    """(1/k) Σ_i s_i.

    Source: Coste et al. 2023, arXiv 2310.02743 (mean optimisation).
    Proved by: tests/rewards/test_ensembles.py::test_the_formulas_of_the_paper
    """
    return math.fsum(scores) / len(scores)


def worst_case(scores: Sequence[float]) -> float:
    """min_i s_i.

    Source: Coste et al. 2023, arXiv 2310.02743 (worst-case optimisation, WCO).
    Proved by: tests/rewards/test_ensembles.py::test_the_formulas_of_the_paper
    """
    return min(scores)


def uncertainty_weighted(scores: Sequence[float], weight: float) -> float:
    """(1/k) Σ_i s_i − λ (1/k) Σ_i (s_i − mean)²; `weight` is λ.

    Source: Coste et al. 2023, arXiv 2310.02743 (uncertainty-weighted optimisation, UWO).
    Proved by: tests/rewards/test_ensembles.py::test_the_formulas_of_the_paper
    """
    return mean(scores) - weight * _variance(scores)


def disagreement(members: Sequence[Sequence[float | None]]) -> float | None:
    """`disagreements`, mean over samples; None if no sample has all scores."""
    known = [each for each in disagreements(members) if each is not None]
    return math.fsum(known) / len(known) if known else None


def disagreements(members: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Standard deviation between the members' scores of each sample; None where one of them has none.

    members: one list of scores for each member, in the same order of samples.
    """
    rows = [[score for score in row if score is not None] for row in zip(*members, strict=True)]
    return [math.sqrt(_variance(row)) if len(row) == len(members) else None for row in rows]


def _variance(scores: Sequence[float]) -> float:
    centre = mean(scores)
    return math.fsum((s - centre) ** 2 for s in scores) / len(scores)
