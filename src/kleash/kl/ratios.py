"""The importance ratios that the KL's charges carry on samples of another policy: three forms, and what each computes.

With ρ_t = π/μ of token t, μ the distribution that sampled, the terms of a charge D_n of a position are

    own_n = before_n D_n          to_go_t = score_t Σ_{n>t} before_n D_n

    prefix     before_n = ρ_{<n}     score_t = 1      exact; the least noise that is
    sequence   before_n = ρ_{1:T}    score_t = 1      exact too: later ratios have mean 1, and add noise alone
    token      before_n = 1          score_t = ρ_t    biased: states and what comes after stay μ's (docs/kl.md §5)

A charge of the sampled token itself takes `through`, its own ratio among them, in the place of `before`.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Importance = Literal["prefix", "sequence", "token"]


class Ratios(NamedTuple):
    """Importance ratios of the policy to the one that sampled, per token; all 1 in the first update after sampling.

    token: ρ_t, live. The others are detached and may be truncated: `before` weighs a charge of the state at a token,
    `through` one of the token itself, `score` the sum of all charges to come.
    """

    token: Float[Tensor, "B T"]
    before: Float[Tensor, "B T"]
    through: Float[Tensor, "B T"]
    score: Float[Tensor, "B T"] | float = 1.0

    @property
    def credit(self) -> Float[Tensor, "B T"]:
        """Of the sampled token and all before it: what a baseline at t is multiplied by, for its mean to be 0."""
        return self.score * self.through


class Bounded(NamedTuple):
    """truncations: tokens of the mask whose weight was truncated."""

    ratios: Ratios
    truncations: int


def importance_ratios(
    logprobs: Float[Tensor, "B T"],
    sampled: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    cap: float | None,
    importance: Importance | None = "prefix",
) -> Bounded:
    """The ratios of one form, truncated at `cap` (None: not). importance None: of a penalty that takes ρ_t alone.

    `sampled` holds the log-probs of the distribution that drew the tokens, in nats. Exactly 1 everywhere when it is
    logprobs. Tokens outside the mask count as ratio 1.

    Source: Zhang et al. 2025, arXiv 2505.17508 (off-policy KL); truncation: Ionides 2008.
    Proved by: tests/kl/test_ratios.py::test_ratios_equal_slow_loop
    """
    log_token = torch.where(mask, logprobs - sampled, 0.0)
    token, fixed = log_token.exp(), log_token.detach()
    one = torch.ones_like(fixed)
    if importance is None:
        return Bounded(Ratios(token, one, one), 0)
    if importance == "token":
        score = fixed.exp()
        return Bounded(Ratios(token, one, one, _capped(score, cap)), _over(score, mask, cap))
    if importance == "sequence":
        whole = fixed.sum(1, keepdim=True).expand(mask.shape).exp()
        capped = _capped(whole, cap)
        return Bounded(Ratios(token, capped, capped), _over(whole, mask, cap))
    log_through = fixed.cumsum(1)
    through, before = log_through.exp(), (log_through - fixed).exp()
    ratios = Ratios(token, _capped(before, cap), _capped(through, cap))
    return Bounded(ratios, _over(torch.maximum(before, through), mask, cap))


def off_policy_label(importance: Importance) -> str:
    """What a form other than the default makes of a penalty's gradient after the first update, to follow its label.

    Source: docs/kl.md §5.
    Proved by: tests/kl/test_ratios.py::test_a_form_that_is_not_the_default_says_what_it_does
    """
    return {
        "prefix": "",
        "sequence": "; after the first update with the ratio of the whole sequence, exact and noisier",
        "token": "; after the first update with a token ratio, biased: states and later tokens stay the old policy's",
    }[importance]


def _capped(ratio: Float[Tensor, "B T"], cap: float | None) -> Float[Tensor, "B T"]:
    return ratio if cap is None else ratio.clamp_max(cap)  # counted by _over


def _over(ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], cap: float | None) -> int:
    return 0 if cap is None else int(((ratio > cap) & mask).sum())
