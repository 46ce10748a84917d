"""KTO: single texts, each labelled desirable or not, and the baseline z0 that their log-ratios are compared with.

The paper's z0 is KL(π(·|x) ‖ π_ref(·|x)) in nats, one number for the whole step, detached. What can stand for it:

mismatched  the paper's estimate: the mean log-ratio of answers put to *other* prompts of the same step, not below 0.
            Of answers q that are not π's samples its mean is KL(q‖π_ref) − KL(q‖π), not KL(π‖π_ref): it falls below 0,
            and is clamped, as soon as training makes answers less likely elsewhere than the reference has them.
on_policy   that KL itself, measured on samples of the policy: right, and as old as the last measurement.
prefixes    Σ_t KL(π ‖ π_ref | prefix) of the step's own texts, exact at each position and never negative: the KL where
            the data are; the sequence's KL only if the texts are π's own samples.
zero        none.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kleash.masked import require_bool

BaselineKind = Literal["mismatched", "on_policy", "prefixes", "zero"]


class TextLoss(NamedTuple):
    """loss: of each text, live, to be averaged over texts. rewards: β·log-ratio, detached."""

    loss: Float[Tensor, " B"]
    rewards: Float[Tensor, " B"]


class Baseline(NamedTuple):
    """z0, in nats per sequence; None where the step cannot tell. raw: before the clamp at 0. n: texts behind it."""

    value: float | None
    raw: float | None
    n: int

    @property
    def clamped(self) -> bool:
        return self.raw is not None and self.raw < 0


class Mismatch(NamedTuple):
    """Answer `text[k]` put to the prompt of row `prompt[k]`; both are rows of the step."""

    prompt: Int[Tensor, " M"]
    text: Int[Tensor, " M"]


def kto(
    ratio: Float[Tensor, " B"],
    desirable: Bool[Tensor, " B"],
    baseline: float,
    beta: float,
    weights: tuple[float, float],
) -> TextLoss:
    """λ_D σ(β (z0 − ratio)) of desirable texts, λ_U σ(β (ratio − z0)) of the others, λ = weights. rewards: β·ratio.

    This is the paper's λ_y − v(x, y). ratio is the text's Σ_t log π − log π_ref, in nats, and z0 the baseline.

    Source: Ethayarajh et al. 2024 (KTO), arXiv 2402.01306 §4.
    Proved by: tests/rl/test_kto.py::test_equals_the_papers_formula
    """
    require_bool(desirable)
    good = desirable.to(ratio.dtype)
    weight = weights[0] * good + weights[1] * (1 - good)
    return TextLoss(weight * torch.sigmoid((1 - 2 * good) * beta * (ratio - baseline)), beta * ratio.detach())


def mismatched(prompt: Int[Tensor, " B"]) -> Mismatch:
    """Every answer of the step put to a prompt that is not its own, each answer and each prompt at most once.

    `prompt` numbers the rows' prompts: rows of one prompt have one number, so that an answer never meets its own prompt
    in another row. Rows of a prompt that holds more than half of the step cannot all be placed: they are left out.

    Source: the set of y′ is that of y (TRL PR 1402) and no y′ is matched (TRL issue 1911); the shift by the largest
        group of equal prompts in sorted order is ours.
    Proved by: tests/rl/test_kto.py::test_no_answer_meets_its_own_prompt
    """
    order = prompt.argsort(stable=True)
    largest = int(torch.unique(prompt, return_counts=True)[1].max()) if len(prompt) else 0
    text = order.roll(largest)
    apart = prompt[order] != prompt[text]
    return Mismatch(order[apart], text[apart])


def mismatched_baseline(ratio: Float[Tensor, " M"]) -> Baseline:
    """max(0, mean of the mismatched answers' log-ratio), in nats per sequence; the clamp is in the result.

    Source: Ethayarajh et al. 2024 (KTO), arXiv 2402.01306 §4.
    Proved by: tests/rl/test_kto.py::test_what_each_baseline_is
    """
    if not len(ratio):
        return Baseline(None, None, 0)
    raw = float(ratio.detach().double().mean())
    return Baseline(max(0.0, raw), raw, len(ratio))


def prefix_baseline(kl: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Baseline:
    """Mean over texts of Σ_t KL(π(·|prefix) ‖ π_ref(·|prefix)), in nats per sequence.

    Source: the definition; exact KL per position: Amini et al. 2025, arXiv 2504.10637.
    Proved by: tests/rl/test_kto.py::test_what_each_baseline_is
    """
    require_bool(mask)
    raw = float(torch.where(mask, kl.detach(), 0.0).sum(1).double().mean())
    return Baseline(raw, raw, len(kl))
