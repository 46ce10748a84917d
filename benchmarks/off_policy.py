"""What each ratio on the KL's charges costs, by exact sums on tabular models: `python -m benchmarks.off_policy`

Prints the page docs/runs/off-policy.md (float64, nats) and exits with 1 if a form that must be exact is not.
"""

import sys
from statistics import median
from typing import NamedTuple

import torch
from benchmarks.estimators import EXACT, table
from tests.tabular import (
    Sequences,
    each_gradient,
    enumerate_sequences,
    next_logprobs,
    position_kl,
    probabilities,
    random_logits,
    sequence_kl,
    token_logprobs,
)
from torch import Tensor

from kleash.kl.penalties import Exact
from kleash.kl.ratios import Importance, importance_ratios
from kleash.tensors import Look

FORMS: tuple[Importance, ...] = ("prefix", "sequence", "token")
SPACES = {"V = 5, T = 3": enumerate_sequences(5, 3, eos=0), "V = 2, T = 8": enumerate_sequences(2, 8)}
DISTANCES = (0.016, 0.13, 0.57)
SEEDS = range(12)
CAP = 5.0

INTRODUCTION = f"""# The ratios on the KL's charges

Made by `python -m benchmarks.off_policy > docs/runs/off-policy.md` (CPU, float64, seconds). The command fails if a form
that must be exact is not (an error below {EXACT:g}).

The gradient of the `exact` penalty on samples of another policy μ, summed exactly over all sequences of tabular models,
for the three forms of `importance`; without a baseline, and no reward. The policy lies KL(μ‖π) nats per sequence from μ
in a random direction, the reference is a third table. Medians over {len(SEEDS)} instances, the largest in brackets.

- *error*: ‖E g − ∇KL‖ / ‖∇KL‖, without a cap and at `prefix_cap = {CAP:g}`.
- *noise*: variance of one sample's gradient (trace) over that with the prefix ratio, without a cap.
"""


class Cell(NamedTuple):
    error: float
    capped: float
    variance: float


def apart(e: Sequences, seed: int, kl: float) -> tuple[Tensor, Tensor, Tensor]:
    """(μ, policy, reference) with KL(μ‖policy) = kl, by bisection along a random direction."""
    mu, direction, reference = (random_logits(3 * seed + i, e).detach() for i in range(3))
    low, high = 0.0, 1.0
    while sequence_kl(mu, mu + high * direction, e) < kl:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sequence_kl(mu, mu + middle * direction, e) < kl else (low, middle)
    return mu, (mu + high * direction).requires_grad_(), reference


def samples(e: Sequences, mu: Tensor, policy: Tensor, reference: Tensor, form: Importance, cap: float | None) -> Tensor:
    """Each sequence's gradient of the penalty, as the algorithms make it from the penalty's terms: [S, parameters]."""
    logprobs = token_logprobs(policy, e)
    ratios, _ = importance_ratios(logprobs, token_logprobs(mu, e), e.mask, cap, form)
    p = next_logprobs(policy, e)
    look = Look(logprobs, -(p.exp() * p).sum(-1), token_logprobs(reference, e), position_kl(policy, reference, e))
    terms = Exact(importance=form).terms(look, e.mask, ratios)
    assert terms.own is not None
    assert terms.to_go is not None
    return each_gradient(torch.where(e.mask, terms.own + terms.to_go * logprobs, 0.0).sum(1), policy)


def measured(e: Sequences, seed: int, kl: float, form: Importance) -> Cell:
    mu, policy, reference = apart(e, seed, kl)
    chance = probabilities(mu, e)
    (truth,) = torch.autograd.grad(sequence_kl(policy, reference, e), policy)
    truth = truth.flatten()
    free, capped = (samples(e, mu, policy, reference, form, cap) for cap in (None, CAP))
    mean = chance @ free
    return Cell(
        float((mean - truth).norm() / truth.norm()),
        float((chance @ capped - truth).norm() / truth.norm()),
        float(chance @ free.square().sum(1) - mean.square().sum()),
    )


def page(seeds: range) -> tuple[str, list[str]]:
    """The page, and what should have been exact and is not."""
    parts, wrong = [INTRODUCTION], []
    for name, e in SPACES.items():
        rows = []
        for kl in DISTANCES:
            cells = {form: [measured(e, seed, kl, form) for seed in seeds] for form in FORMS}
            for form in FORMS:
                if form != "token" and max(c.error for c in cells[form]) > EXACT:
                    wrong.append(f"{form} at {kl} nats, {name}")
                noise = [c.variance / p.variance for c, p in zip(cells[form], cells["prefix"], strict=True)]
                errors = "exact" if form != "token" else spread([c.error for c in cells[form]])
                rows.append([
                    str(kl), form, errors, spread([c.capped for c in cells[form]]),
                    "1" if form == "prefix" else f"{median(noise):.2f} ({max(noise):.2f})",
                ])  # fmt: skip
        header = ["KL(μ‖π)", "importance", "error", f"error at cap {CAP:g}", "noise"]
        parts.append(f"## {name}\n\n{table(header, rows)}\n")
    return "\n".join(parts).rstrip(), wrong


def spread(errors: list[float]) -> str:
    return f"{100 * median(errors):.1f} % ({100 * max(errors):.1f} %)"


def main() -> None:
    text, wrong = page(SEEDS)
    print(text)
    for what in wrong:
        print(f"not exact: {what}", file=sys.stderr)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
