"""What importance ratios cost, on the KL and on the reward, by exact sums: `python -m benchmarks.off_policy`

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
from kleash.rl.mismatch import Mismatch
from kleash.tensors import Look

FORMS: tuple[Importance, ...] = ("prefix", "sequence", "token")
SPACES = {"V = 5, T = 3": enumerate_sequences(5, 3, eos=0), "V = 2, T = 8": enumerate_sequences(2, 8)}
DISTANCES = (0.016, 0.13, 0.57)
SEEDS = range(12)
CAP = 5.0

INTRODUCTION = f"""# Samples of another policy

Made by `python -m benchmarks.off_policy > docs/runs/off-policy.md` (CPU, float64, seconds). The command fails if a form
that must be exact is not (an error below {EXACT:g}). All is summed exactly over the sequences of tabular models.

## The ratios on the KL's charges

The gradient of the `exact` penalty on samples of another policy μ, for the three forms of `importance`; without a
baseline and without a reward. The policy lies KL(μ‖π) nats per sequence from μ in a random direction, the reference is
a third table. Medians over {len(SEEDS)} instances, the largest in brackets.

- *error*: ‖E g − ∇KL‖ / ‖∇KL‖, without a cap and at `prefix_cap = {CAP:g}`.
- *noise*: variance of one sample's gradient (trace) over that with the prefix ratio, without a cap.
"""


FREE = "sequences, no bound"
CORRECTIONS = {
    "none": None,
    FREE: Mismatch(level="sequence", cap=1e9),
    "truncated, tokens, 2": Mismatch(level="token"),
    "truncated, sequences, 2": Mismatch(),
    "masked, tokens, 0.5 – 2": Mismatch(kind="masked", level="token"),
    "masked, sequences, 0.5 – 2": Mismatch(kind="masked"),
}
NEAR = (0.001, 0.016, 0.13)

CORRECTED = """## What corrects the reward's credit for a sampler

The gradient of E R, rewards drawn without structure, from samples of μ less their mean reward (V = 2, T = 8). *error*
as above; *noise*: over that without a correction; *bounded*: share of sampled tokens whose weight met a bound.
"""


class Credited(NamedTuple):
    error: float
    variance: float
    met: float


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
        parts.append(f"### {name}\n\n{table(header, rows)}\n")
    parts.append(corrections(seeds, wrong))
    return "\n".join(parts).rstrip(), wrong


def corrections(seeds: range, wrong: list[str]) -> str:
    e = SPACES["V = 2, T = 8"]
    rows = []
    for kl in NEAR:
        cells = {name: [credited(e, seed, kl, how) for seed in seeds] for name, how in CORRECTIONS.items()}
        if max(c.error for c in cells[FREE]) > EXACT:
            wrong.append(f"{FREE} at {kl} nats")
        for name, found in cells.items():
            noise = [c.variance / n.variance for c, n in zip(found, cells["none"], strict=True)]
            errors = "exact" if name == FREE else spread([c.error for c in found])
            rows.append([
                str(kl), name, errors, "1" if name == "none" else f"{median(noise):.2f} ({max(noise):.2f})",
                f"{median(c.met for c in found):.3f}",
            ])  # fmt: skip
    return f"{CORRECTED}\n{table(['KL(μ‖π)', '`train.mismatch`', 'error', 'noise', 'bounded'], rows)}"


def credited(e: Sequences, seed: int, kl: float, how: Mismatch | None) -> Credited:
    """The gradient of E R, of rewards without structure, from samples of μ less their mean reward."""
    mu, policy, _ = apart(e, seed, kl)
    reward = torch.rand(len(e.ids), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chance, logprobs = probabilities(mu, e), token_logprobs(policy, e)
    (truth,) = torch.autograd.grad((logprobs.sum(1).exp() * reward).sum(), policy, retain_graph=True)
    weight, met = torch.ones_like(logprobs), torch.zeros_like(e.mask)
    if how is not None:
        weight, met = how.weights(logprobs, token_logprobs(mu, e), e.mask)
    each = each_gradient((weight * (reward - chance @ reward)[:, None] * logprobs).sum(1), policy)
    mean = chance @ each
    return Credited(
        float((mean - truth.flatten()).norm() / truth.norm()),
        float(chance @ each.square().sum(1) - mean.square().sum()),
        float((chance[:, None] * met).sum() / (chance[:, None] * e.mask).sum()),
    )


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
