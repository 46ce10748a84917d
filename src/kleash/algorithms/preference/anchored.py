"""Losses with the reference inside: DPO and its relatives. `beta` is the price of KL, in units of reward per nat."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.algorithms.preference.checks import check_positive
from kleash.rl.pair_sums import PairLoss, Sides, means, sums
from kleash.rl.preference_losses import Length, dpo
from kleash.tensors import Look

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def log_ratio(look: Look) -> Float[Tensor, "B T"]:
    """log π − log π_ref of each token. Nats.

    Source: the definition.
    Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_reads_a_look
    """
    assert look.ref is not None, "preflight guarantees a reference for a loss that needs one"
    return look.logprobs - look.ref


def text_ratio(look: Look, mask: Bool[Tensor, "B T"], length: Length) -> Sides:
    """The log-ratio of each text: its sum over tokens, or their mean. Nats, or nats a token.

    Source: the definition.
    Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_reads_a_look
    """
    return (means if length == "mean" else sums)(log_ratio(look), mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO:
    """length: "sum" is the paper's; "mean" divides each text's log-ratio by its tokens (beta is then near 5)."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["dpo"] = "dpo"
    beta: float = 0.1
    length: Length = "sum"

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)

    @property
    def label(self) -> str:
        if self.length == "mean":
            return "reference in the loss; optimum reference·exp(length·(reward − c)/beta), c making it sum to 1"
        return "reference in the loss; optimum reference·exp(reward/beta)/Z, where labels follow Bradley–Terry"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−log σ(β (ratio of the chosen − ratio of the rejected)).

        Source: Rafailov et al. 2023 (DPO), arXiv 2305.18290 eq. 7; "mean": Tülu 3, arXiv 2411.15124.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_reads_a_look
        """
        return dpo(text_ratio(look, mask, self.length), beta)
