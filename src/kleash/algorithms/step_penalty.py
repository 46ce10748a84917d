"""PPO's other bound on a step: a price on KL(old policy‖policy) whose coefficient finds its own size.

It limits how far one step may go, from wherever the step began. How far a run may go from the reference is the leash's
business, which has its own beta and its own controller.
"""

from dataclasses import dataclass, replace

from jaxtyping import Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.estimators import k3
from kleash.records import Reading, Target

#: As published: the coefficient moves by FACTOR when kl_old/target leaves [1/BAND, BAND].
BAND, FACTOR = 1.5, 2.0
#: It stays between these; how often a move was cut short there is counted.
SMALLEST, LARGEST = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class StepPrice:
    """What is remembered between steps: the coefficient in force, and the moves that met one of its bounds."""

    beta: float
    clipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPenalty:
    """target: kl_old of a step, with its unit. beta: the first coefficient, in units of advantage per nat."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    target: str
    beta: float = 1.0

    def __post_init__(self) -> None:
        Target.parse(self.target)
        if not SMALLEST <= self.beta <= LARGEST:
            raise UsageError(
                f"algorithm.step_penalty.beta = {self.beta} must lie between {SMALLEST:g} and {LARGEST:g} (1 is usual)"
            )

    def at(self, price: StepPrice) -> "StepPenalty":
        """The same penalty with the coefficient in force."""
        return replace(self, beta=price.beta)

    def terms(self, old: Float[Tensor, "B T"], logprobs: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        """beta · k3 of each token, live. In nats, times beta.

        On the old policy's own samples both value and gradient are those of KL(old‖policy), without bias: at each
        position, and, the prefixes being the old policy's too, summed up those of whole sequences.

        Source: Schulman et al. 2017, arXiv 1707.06347 eq. 8; k3: Schulman 2020.
        Proved by: tests/training/test_step_penalty.py::test_gradient_of_a_second_update
        """
        return self.beta * k3(old - logprobs)

    def moved(self, price: StepPrice, kl_old: Reading | None) -> StepPrice:
        """The price of the next step: doubled where the step went too far, halved where it stayed too near.

        Source: Schulman et al. 2017, arXiv 1707.06347 §4.
        Proved by: tests/training/test_step_penalty.py::test_the_rule_by_cases
        """
        if kl_old is None:
            return price
        target = Target.parse(self.target)
        per_token = target.unit == "nats/token"
        value = kl_old.value * kl_old.n_sequences / kl_old.n_tokens if per_token else kl_old.value
        ratio = value / target.value
        beta = price.beta * FACTOR if ratio > BAND else price.beta / FACTOR if ratio < 1 / BAND else price.beta
        bounded = min(max(beta, SMALLEST), LARGEST)  # counted in `clipped`
        return StepPrice(bounded, price.clipped + (bounded != beta))
