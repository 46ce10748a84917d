"""How a reward model is fitted to preferences: Bradley and Terry's model; margins, centring and careless raters too."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid


class PairLoss(NamedTuple):
    """loss: per pair, in nats, live. preference: its part without the centring term."""

    loss: Float[Tensor, " N"]
    preference: Float[Tensor, " N"]


def bradley_terry(
    chosen: Float[Tensor, " N"],
    rejected: Float[Tensor, " N"],
    margin: Float[Tensor, " N"] | None = None,
    *,
    centre: float = 0.0,
    careless: float = 0.0,
) -> PairLoss:
    """−log [(1 − ε) σ(r_c − r_r − m) + ε/2] + centre · (r_c + r_r)² per pair.

    The preference alone does not know where the scores lie (r + c is as good as r); `centre` puts each pair's middle
    at 0, and changes no difference at the optimum of a model that can tell all texts apart.

    Args:
        chosen, rejected: scores of the two answers of each pair.
        margin: by how much the chosen answer should be ahead, m; None: 0.
        centre: weight of the centring term; 0.01 is Eisenstein et al.'s.
        careless: ε, the share of pairs that were labelled by a coin, however clear they are. It bounds what one
            wrong label can cost, −log(ε/2).

    Source: Bradley & Terry 1952; margin: Touvron et al. 2023 (Llama 2), arXiv 2307.09288 eq. 2; centring: Eisenstein
        et al. 2023, arXiv 2312.09244; careless raters: Christiano et al. 2017, arXiv 1706.03741 §2.2.3 (ε = 0.1).
    Proved by: tests/rl/test_bradley_terry.py::test_loss_and_gradient_equal_the_formula,
        tests/rl/test_bradley_terry.py::test_the_maximum_likelihood_is_the_closed_form
    """
    ahead = chosen - rejected if margin is None else chosen - rejected - margin
    likelihood = logsigmoid(ahead)
    if careless:
        # log[(1 − ε) σ + ε/2] as a sum in log space: at a large negative difference σ alone would be 0.
        coin = torch.full_like(likelihood, math.log(careless / 2))
        likelihood = torch.logaddexp(likelihood + math.log1p(-careless), coin)
    preference = -likelihood
    if not centre:
        return PairLoss(preference, preference)
    return PairLoss(preference + centre * (chosen + rejected).square(), preference)
