"""Losses with the reference inside: DPO and its relatives. `beta` is the price of KL, in units of reward per nat."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Bool, Float
from torch import Tensor

from kleash.algorithms.preference.checks import STRICT, check_positive
from kleash.errors import UsageError
from kleash.rl.pair_sums import PairLoss, Sides, desensitised_sums, means, sums
from kleash.rl.preference_losses import Divergence, Length, dpo, exo, f_dpo, hinge, ipo
from kleash.tensors import Look


def log_ratio(look: Look) -> Float[Tensor, "B T"]:
    """log π − log π_ref of each token. Nats.

    Source: the definition.
    Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
    """
    assert look.ref is not None, "preflight guarantees a reference for a loss that needs one"
    return look.logprobs - look.ref


def text_ratio(look: Look, mask: Bool[Tensor, "B T"], length: Length = "sum") -> Sides:
    """The log-ratio of each text: its sum over tokens, or their mean. Nats, or nats a token.

    Source: the definition.
    Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
    """
    return (means if length == "mean" else sums)(log_ratio(look), mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class DPO:
    """length: "sum" is the paper's; "mean" divides a text's log-ratio by its tokens, as Tülu 3 does with beta = 5."""

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
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return dpo(text_ratio(look, mask, self.length), beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class IPO:
    """beta is the paper's τ. length: "mean" is what its authors ran; the paper's formula is the "sum"."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["ipo"] = "ipo"
    beta: float = 0.1
    length: Length = "sum"

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)

    @property
    def label(self) -> str:
        if self.length == "mean":
            return "reference in the loss; optimum reference·exp(length·(win rate − c)/beta), c making it sum to 1"
        return "reference in the loss; optimum reference·exp(win rate/beta)/Z, also where labels are certain"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """(ratio of the chosen − ratio of the rejected − 1/(2β))².

        Source: Azar et al. 2023 (IPO), arXiv 2310.12036 eq. 17.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return ipo(text_ratio(look, mask, self.length), beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hinge:
    """SLiC's hinge on the log-ratio: a pair whose margin is 1 teaches nothing more."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["hinge"] = "hinge"
    beta: float = 0.1

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)

    @property
    def label(self) -> str:
        return "reference in the loss; no posterior: margins of 1 towards the answer that most labels prefer"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """max(0, 1 − β (ratio of the chosen − ratio of the rejected)).

        Source: Liu et al. 2023 (RSO, hinge-norm), arXiv 2309.06657.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return hinge(text_ratio(look, mask), beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class EXO:
    """smoothing: how much of a label's probability goes to the other answer; above 0, for its logarithm is taken."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["exo"] = "exo"
    beta: float = 0.1
    smoothing: float = 1e-3

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        if not 0 < self.smoothing < 0.5:
            raise UsageError(
                f"loss.smoothing = {self.smoothing} must lie between 0, where the loss is infinite, and 0.5, where it "
                "says nothing (0.001 is usual)"
            )

    @property
    def label(self) -> str:
        return "reference in the loss; no posterior: a pair's margin ends at (2P − 1)·log((1 − smoothing)/smoothing)"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """KL of the policy's preference to the smoothed label's.

        Source: Ji et al. 2024 (EXO, K = 2), arXiv 2402.00856 eq. 16.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return exo(text_ratio(look, mask), beta, self.smoothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FDPO:
    """divergence: which one to the reference is charged. alpha: its order, between 0 and 1, for "alpha" alone."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["f_dpo"] = "f_dpo"
    beta: float = 0.1
    divergence: Divergence = "js"
    alpha: float | None = None

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        if self.divergence == "alpha" and not (self.alpha is not None and 0 < self.alpha < 1):
            raise UsageError(
                f'loss.alpha = {self.alpha}: divergence = "alpha" needs its order, between 0 (reverse_kl) and 1 '
                "(forward_kl)"
            )
        if self.divergence != "alpha" and self.alpha is not None:
            raise UsageError(f'loss.alpha is the order of divergence = "alpha"; "{self.divergence}" has none')

    @property
    def label(self) -> str:
        return "reference in the loss; optimum reference·g((reward − c)/beta), g the inverse of the divergence's f′"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """−log σ(β f′(u_chosen) − β f′(u_rejected)), u = π/π_ref of a text.

        Source: Wang et al. 2023 (f-DPO), arXiv 2309.16240 table 1.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return f_dpo(text_ratio(look, mask), beta, self.divergence, self.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class LDDPO:
    """alpha: the weight of tokens beyond the length of a pair's shorter answer: 1 is DPO, 0 does not look at them."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["ld_dpo"] = "ld_dpo"
    beta: float = 0.1
    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_positive("loss.beta", self.beta)
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"loss.alpha = {self.alpha} must lie between 0 (the longer answer is cut) and 1 (DPO)")

    @property
    def label(self) -> str:
        return "reference in the loss; DPO's optimum where both answers have one length, else none is known"

    def loss(self, look: Look, mask: Bool[Tensor, "B T"], beta: float) -> PairLoss:
        """DPO of log-ratios whose tokens beyond the shorter answer's length count alpha times.

        Source: Liu et al. 2024 (LD-DPO), arXiv 2409.06411.
        Proved by: tests/algorithms/test_preference_configs.py::test_every_loss_is_its_formula_of_a_look
        """
        return dpo(desensitised_sums(log_ratio(look), mask, self.alpha), beta)
