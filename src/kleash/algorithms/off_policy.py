"""What each algorithm's loss needs of the distributions behind its samples: three of them, and two ratios.

μ sampled (`rollout.sampler`), π_old is the policy before the step's updates (`batch.old`), π the policy at hand. PPO's
surrogate is bounded around π_old. The KL's charges, which nothing clips, are weighed from π_old as well; or, where the
run corrects for the sampler (`train.mismatch`), from μ itself, which makes them exact for any sampler.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from kleash.kl.penalties import Penalty
from kleash.kl.ratios import Ratios, importance_ratios
from kleash.tensors import Batch, Look


class OffPolicyRatios(NamedTuple):
    """token: π/π_old, live, for the surrogate. charges: those of the KL; truncations: counted tokens of theirs."""

    old: Float[Tensor, "B T"]
    token: Float[Tensor, "B T"]
    charges: Ratios
    truncations: int


def off_policy_ratios(look: Look, batch: Batch, penalty: Penalty, cap: float | None) -> OffPolicyRatios:
    """The ratios of one look; cap None: of the exact off-policy form, every prefix ratio and no truncation.

    Source: docs/kl.md §5.
    Proved by: tests/training/test_mismatch.py::test_the_leash_is_exact_under_any_correction
    """
    importance = "prefix" if cap is None else penalty.importance
    old = look.logprobs.detach() if batch.old is None else batch.old
    charges, truncations = importance_ratios(
        look.logprobs, old if batch.correction is None else batch.rollout.sampler, batch.mask, cap, importance
    )
    token = charges.token
    if batch.correction is not None:
        token = importance_ratios(look.logprobs, old, batch.mask, None, None).ratios.token
    return OffPolicyRatios(old, token, charges, truncations)


def corrected(losses: Float[Tensor, "B T"], batch: Batch) -> Float[Tensor, "B T"]:
    """The reward's token losses, times the weights that correct for the sampler where there are any.

    Source: Yao et al. 2025 (see `kleash.rl.mismatch`).
    Proved by: tests/training/test_mismatch.py::test_uncapped_sequence_weights_are_exact
    """
    return losses if batch.correction is None else batch.correction * losses
