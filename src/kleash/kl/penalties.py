"""Where the KL enters: each penalty splits into a live term of the loss and a detached credit for the KL to come.

    loss of token t  +=  β [ own_t + stop_grad(to_go_t − baseline) ℓ_t ]         ℓ_t = log π(token t)

`exact` and `future_sampled` use both halves, `in_reward` only the credit, `in_loss` only the loss; `chi2` and `renyi`
are in `divergence_penalties`. `importance` is the form of the ratios after a step's first update (`ratios.py`). A
combination whose gradient is not what its name says is refused when the object is made, with the reason and the
alternative.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kleash.errors import UsageError
from kleash.kl.divergence_penalties import Chi2, Renyi
from kleash.kl.estimators import k1, k2, k3
from kleash.kl.ratios import Importance, Ratios, off_policy_label
from kleash.kl.terms import STRICT, KLTerms, Penalty, charge_of_positions, kl_to_come
from kleash.tensors import Look


def _reference_kl(look: Look) -> Float[Tensor, "B T"]:
    assert look.kl is not None, "preflight guarantees a reference for a penalty that needs one"
    return look.kl


def _log_ratio(look: Look) -> Float[Tensor, "B T"]:
    assert look.ref is not None, "preflight guarantees a reference for a penalty that needs one"
    return look.logprobs - look.ref


@dataclass(frozen=True, slots=True)
class Exact:
    """Full-vocabulary KL at every position: own token in the loss, the KL to come in the advantage (the default)."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["exact"] = "exact"
    importance: Importance = "prefix"

    @property
    def label(self) -> str:
        said = "the sequence's reverse KL(policy‖reference); exact at each position, seldom noisier than a sampled one"
        return said + off_policy_label(self.importance)

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Own term ρ_{<t} K_t, credit Σ_{n>t} ρ_{<n} K_n. Nats.

        Source: Amini et al. 2025, arXiv 2504.10637 (Rao–Blackwellised gradient).
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        return charge_of_positions(_reference_kl(look), mask, ratios, look.weight)


@dataclass(frozen=True, slots=True)
class InReward:
    """k1 per token in the reward with reward-to-go: RLHF's classic. The same gradient as `exact`, noisier."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["in_reward"] = "in_reward"
    estimator: Literal["k1", "k2", "k3", "exact"] = "k1"
    importance: Importance = "prefix"

    def __post_init__(self) -> None:
        if self.estimator in ("k2", "k3"):
            raise UsageError(
                f"kl.penalty: {self.estimator} in the reward has a gradient that vanishes near the reference and can "
                'point away from it; use estimator = "k1" in the reward, or penalty = "exact"'
            )
        if self.estimator == "exact":
            raise UsageError(
                "kl.penalty: the exact KL in the reward alone keeps only the credit for later tokens (nothing at one "
                'token); penalty = "exact" puts each token\'s own KL in the loss as well'
            )

    @property
    def label(self) -> str:
        said = "the sequence's reverse KL(policy‖reference), sampled (k1): unbiased and noisy"
        return said + off_policy_label(self.importance)

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """No own term, credit Σ_{n≥t} ρ_{1:n} k1_n. Nats.

        Source: Ziegler et al. 2019, arXiv 1909.08593 §2; Stiennon et al. 2020, arXiv 2009.01325.
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        x = torch.where(mask, ratios.through * k1(_log_ratio(look)).detach(), 0.0)
        return KLTerms(own=None, to_go=ratios.score * (x + kl_to_come(x, mask)))


@dataclass(frozen=True, slots=True)
class InLoss:
    """A per-position KL in the loss: the KL of later tokens is missing from its gradient. A named choice.

    ratio: "live" multiplies by ρ_t kept in the graph, "detached" by stop-gradient ρ_t, "none" by nothing. Left out:
    the one that gives the per-position reverse KL (k2: detached, k3: live, exact: none).
    """

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["in_loss"] = "in_loss"
    estimator: Literal["k1", "k2", "k3", "exact"] = "exact"
    ratio: Literal["live", "detached", "none", "default"] = "default"

    def __post_init__(self) -> None:
        if self.estimator == "k1":
            raise UsageError(
                "kl.penalty: k1 in the loss has an expected gradient of exactly zero, so it holds nothing; use "
                'estimator = "k2", "k3" or "exact" in the loss, or penalty = "in_reward" for k1'
            )
        if self.estimator == "k2" and self.ratio == "live":
            raise UsageError(
                "kl.penalty: k2 times a live ratio is the gradient of E[k2], which is no KL; use "
                'ratio = "detached" (the default for k2)'
            )
        if self.estimator == "exact" and self.ratio in ("live", "detached"):
            raise UsageError(
                "kl.penalty: the exact KL of a position does not depend on the token sampled there, so a token ratio "
                'does not belong on it; leave ratio out, or use penalty = "exact" for the sequence KL'
            )

    @property
    def label(self) -> str:
        if self.estimator == "k3" and self.ratio in ("detached", "none"):
            return "Σ_t E_prefix ∇KL(reference‖policy): a forward KL at each position (GRPO as published)"
        return "Σ_t E_prefix ∇KL(policy‖reference): a reverse KL at each position, without the KL of later tokens"

    @property
    def importance(self) -> None:
        return None

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Own term only. Nats.

        Source: Shao et al. 2024 (GRPO, k3), arXiv 2402.03300; Liu et al. 2025, arXiv 2510.01555 (k2, ratios).
        Proved by: tests/training/test_gradient.py::test_in_loss_is_the_stated_per_position_gradient
        """
        if self.estimator == "exact":
            kl = _reference_kl(look)
            return KLTerms(own=kl if look.weight is None else look.weight * kl, to_go=None)
        value = (k2 if self.estimator == "k2" else k3)(_log_ratio(look))
        ratio = {"k2": "detached", "k3": "live"}[self.estimator] if self.ratio == "default" else self.ratio
        weight = {"live": ratios.token, "detached": ratios.token.detach(), "none": 1.0}[ratio]
        return KLTerms(own=weight * value, to_go=None)


@dataclass(frozen=True, slots=True)
class FutureSampled:
    """FRPO's form: k2 own token in the loss and the sampled future k1 in the advantage, one penalty."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["future_sampled"] = "future_sampled"
    importance: Importance = "prefix"

    @property
    def label(self) -> str:
        said = "the sequence's reverse KL(policy‖reference), sampled: noisier than `exact`"
        return said + off_policy_label(self.importance)

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Own term sg(ρ_{1:t}) k2_t, credit Σ_{n>t} ρ_{1:n} k1_n. Nats.

        Source: arXiv 2601.10201 (FRPO).
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        log_ratio = _log_ratio(look)
        come = kl_to_come(ratios.through * k1(log_ratio), mask)
        return KLTerms(own=ratios.credit * k2(log_ratio), to_go=ratios.score * come)


@dataclass(frozen=True, slots=True)
class NoPenalty:
    """No leash. The KL is measured all the same."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = False

    kind: Literal["none"] = "none"

    @property
    def label(self) -> str:
        return "none"

    @property
    def importance(self) -> None:
        return None

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Nothing in the loss, nothing in the advantage.

        Source: the definition; DAPO, arXiv 2503.14476, trains so.
        Proved by: tests/training/test_gradient.py::test_gradient_through_the_loop
        """
        return KLTerms(own=None, to_go=None)


@dataclass(frozen=True, slots=True)
class InPreference:
    """The leash is inside the algorithm's own loss, of pairs: nothing is charged besides."""

    __pydantic_config__ = STRICT
    needs_reference: ClassVar[bool] = True

    kind: Literal["in_preference"] = "in_preference"

    @property
    def label(self) -> str:
        return "inside the loss of pairs, as log-ratios of whole completions; no charge besides"

    @property
    def importance(self) -> None:
        return None

    def terms(self, look: Look, mask: Bool[Tensor, "B T"], ratios: Ratios) -> KLTerms:
        """Nothing in the loss, nothing in the advantage: the algorithm's loss has the reference in it.

        Source: Rafailov et al. 2023 (DPO), arXiv 2305.18290 eq. 4-7.
        Proved by: tests/training/test_online_dpo.py::test_gradient_through_the_loop
        """
        return KLTerms(own=None, to_go=None)


PENALTIES: dict[str, type] = {
    "exact": Exact,
    "in_reward": InReward,
    "in_loss": InLoss,
    "future_sampled": FutureSampled,
    "chi2": Chi2,
    "renyi": Renyi,
    "in_preference": InPreference,
    "none": NoPenalty,
}

__all__ = [
    "PENALTIES",
    "Chi2",
    "Exact",
    "FutureSampled",
    "InLoss",
    "InPreference",
    "InReward",
    "KLTerms",
    "NoPenalty",
    "Penalty",
    "Ratios",
    "Renyi",
    "kl_to_come",
]
