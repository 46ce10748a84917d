"""How good a preference model is on pairs that it has not seen: how often it is right, and whether it knows."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from kleash.intervals import wilson

#: Bins of confidence between ½ and 1.
BINS = 10


class Interval(NamedTuple):
    """A share and its 95 % interval."""

    value: float
    low: float
    high: float


class Bin(NamedTuple):
    """Pairs of similar confidence: how many, how sure the model was on average, how often it was right."""

    pairs: int
    confidence: float
    accuracy: float


class Calibration(NamedTuple):
    """On held-out pairs.

    nll: mean −log σ(r_c − r_r), nats (a coin: 0.693). brier: mean (1 − σ(r_c − r_r))² (a coin: ¼).
    error: the expected calibration error, Σ count/N · |accuracy − confidence| over the bins, 0 to ½.
    """

    accuracy: Interval
    nll: float
    brier: float
    error: float
    bins: list[Bin]


def calibration(ahead: Float[Tensor, " N"], bins: int = BINS) -> Calibration:
    """Of the differences r_c − r_r of held-out pairs, taken as independent; a tie is half right.

    A pair's confidence is σ(|r_c − r_r|), in bins of equal width from ½ to 1; empty ones are left out.

    Source: Guo et al. 2017, arXiv 1706.04599 (expected calibration error); Brier 1950.
    Proved by: tests/rl/test_calibration.py::test_calibration_equals_a_slow_loop
    """
    ahead = ahead.detach().to("cpu", torch.float64)
    confidence = torch.sigmoid(ahead.abs())
    right = (ahead > 0).double() + (ahead == 0).double() / 2
    share = float(right.sum()) / len(ahead)
    which = ((confidence - 0.5) * 2 * bins).long().clamp(max=bins - 1)  # a confidence of exactly 1 is in the last bin
    found = [
        Bin(int(here.sum()), float(confidence[here].mean()), float(right[here].mean()))
        for here in (which == i for i in range(bins))
        if here.any()
    ]
    return Calibration(
        accuracy=Interval(share, *wilson(share, len(ahead))),
        nll=float(-logsigmoid(ahead).mean()),
        brier=float((1 - torch.sigmoid(ahead)).square().mean()),
        error=sum(b.pairs * abs(b.accuracy - b.confidence) for b in found) / len(ahead),
        bins=found,
    )


def disagreement(scores: Float[Tensor, "K N"]) -> float:
    """Standard deviation (the population's) between K members' scores of an item, mean over items.

    Between models fitted to preferences it is taken of differences r_c − r_r, which know no origin: two members that
    differ by a constant agree.

    Source: Coste et al. 2023, arXiv 2310.02743 (variance of a reward model ensemble).
    Proved by: tests/rl/test_calibration.py::test_disagreement_equals_numpy
    """
    return float(scores.detach().double().std(0, correction=0).mean())
