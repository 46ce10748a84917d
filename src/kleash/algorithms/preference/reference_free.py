"""Losses without a reference: nothing in them leashes the policy. The KL is measured all the same."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Bool
from torch import Tensor

from kleash.algorithms.preference.checks import STRICT, check_at_least_zero, check_positive
from kleash.rl.pair_sums import PairLoss, means, sums
from kleash.rl.reference_free_losses import cpo, orpo, simpo
from kleash.tensors import Look


@dataclass(frozen=True, slots=True, kw_only=True)
class ORPO:
    """The likelihood of the chosen answer and beta (the paper's λ) times the odds of it against the other."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = False

    kind: Literal["orpo"] = "orpo"
    beta: float = 0.1

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)

    @property
    def label(self) -> str:
        return "no reference in the loss: the likelihood of chosen answers, pushed off the others; no known posterior"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−mean log π(chosen) − β log σ(logit of the chosen − logit of the rejected), of means over tokens.

        Source: Hong et al. 2024 (ORPO), arXiv 2403.07691 eq. 4–7.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return orpo(means(look.logprobs, mask), beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPO:
    """gamma: the margin asked for, in the scale of beta times a mean log-prob (0.25 to 0.5 of beta is usual)."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = False

    kind: Literal["simpo"] = "simpo"
    beta: float = 2.0
    gamma: float = 0.6

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_at_least_zero("loss.gamma", self.gamma)

    @property
    def label(self) -> str:
        return "no reference in the loss: answers ranked by log-prob per token; no posterior, and nothing holds it back"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−log σ(β (mean log π(chosen) − mean log π(rejected)) − γ).

        Source: Meng et al. 2024 (SimPO), arXiv 2405.14734 eq. 6.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return simpo(means(look.logprobs, mask), beta, self.gamma)


@dataclass(frozen=True, slots=True, kw_only=True)
class CPO:
    """nll: the weight of the chosen answer's likelihood, beside the comparison of whole answers."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = False

    kind: Literal["cpo"] = "cpo"
    beta: float = 0.1
    nll: float = 1.0

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        check_at_least_zero("loss.nll", self.nll)

    @property
    def label(self) -> str:
        return "no reference in the loss: DPO as if it were uniform, and the chosen answers' likelihood; no posterior"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−log σ(β (log π(chosen) − log π(rejected))) − nll · mean log π(chosen).

        Source: Xu et al. 2024 (CPO), arXiv 2401.08417 eq. 3–5.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return cpo(sums(look.logprobs, mask), means(look.logprobs, mask), beta, self.nll)
