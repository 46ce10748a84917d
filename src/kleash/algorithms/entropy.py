"""The entropy bonus: a term of the loss that every algorithm can have, whatever its own loss is.

    loss  −=  coef · Σ_t H_t,    H_t the entropy of π(·|prefix) over the whole vocabulary, live, in nats

averaged as the algorithm averages its token losses. `token` has the gradient of H_t at the prefixes that were sampled,
each held fixed: Σ_t E_prefix ∇H_t, what nearly all libraries add. What a token does to the entropy of later ones is
missing from it. `sequence` has that too, as credit: with a constant length normaliser its expected gradient is that of
the entropy of whole completions, H(π(y|x)) = E Σ_t H_t.
"""

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from kleash.algorithms.group_relative import Totals, weigh_groups
from kleash.kl.ratios import importance_ratios
from kleash.kl.terms import charge_of_positions
from kleash.rl.advantages import leave_one_out_alive
from kleash.rl.policy_losses import Length, reduce_tokens
from kleash.tensors import Batch, Look


class Bonus(NamedTuple):
    """value: to be added to the loss, live. truncations: tokens whose prefix ratio was truncated."""

    value: Float[Tensor, ""]
    truncations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBonus:
    """coef: in units of the algorithm's credit per nat. whole: of whole completions, with credit for what comes."""

    coef: float
    whole: bool = False

    @property
    def label(self) -> str:
        if self.whole:
            return "the entropy of whole completions"
        return "Σ_t E_prefix ∇entropy: that of each token's distribution, without what it does to later ones"

    def term(self, look: Look, batch: Batch, totals: Totals, length: Length, prefix_cap: float) -> Bonus:
        """−coef · Σ m_t H_t, divided as `length` says; whole: with ρ_{<t} and credit for the entropy to come.

        Source: Williams & Peng 1991; for whole completions the product rule, as of the KL: docs/entropy.md.
        Proved by: tests/training/test_entropy.py::test_gradient_through_the_loop
        """
        mask, truncations = batch.mask, 0
        per_token = look.entropy
        if self.whole:
            old = look.logprobs.detach() if batch.old is None else batch.old
            sampled = old if batch.correction is None else batch.rollout.sampler  # as the KL's charges
            ratios, truncations = importance_ratios(look.logprobs, sampled, mask, prefix_cap)
            terms = charge_of_positions(look.entropy, mask, ratios)
            assert terms.own is not None, "a charge of positions has both"
            assert terms.to_go is not None, "a charge of positions has both"
            credit = leave_one_out_alive(terms.to_go, mask, batch.rollout.group, ratios.credit)
            per_token = terms.own + credit * look.logprobs
        value = reduce_tokens(
            weigh_groups(per_token, batch),
            mask,
            length,
            sequences=totals.sequences,
            tokens=totals.tokens,
            constant=totals.constant,
        )
        return Bonus(-self.coef * value, truncations)
