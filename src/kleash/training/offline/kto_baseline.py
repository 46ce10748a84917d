"""KTO's baseline of a step, as the losses' own rule makes it, from passes without gradients."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from kleash.models.answers import Encoded
from kleash.models.plan import Plan
from kleash.rl.kto import Baseline, mismatched, mismatched_baseline, prefix_baseline
from kleash.tensors import Look, Rollout
from kleash.training.passes import spans


def put_elsewhere(rows: Encoded, index: Sequence[int], room: int) -> Encoded:
    """The answers of `index` put to one another's prompts, as `kleash.rl.kto.mismatched` pairs them.

    room: positions of the model; what does not fit there is left out.
    """
    numbers: dict[tuple[int, ...], int] = {}
    prompt = torch.tensor([numbers.setdefault(tuple(rows.prompts[i]), len(numbers)) for i in index])
    pairs = zip(*(side.tolist() for side in mismatched(prompt)), strict=True)
    placed = [(rows.prompts[index[k]], rows.answers[index[j]]) for k, j in pairs]
    fits = [(ids, answers) for ids, answers in placed if len(ids) + max(map(len, answers)) <= room]
    return rows.of([ids for ids, _ in fits], [answers for _, answers in fits])


@torch.no_grad()
def at_once(
    rows: Encoded,
    look: Callable[[Rollout, Plan], Look],
    batch: int,
    device: torch.device,
    kind: Literal["mismatched", "prefixes"],
    plan: Plan,
) -> Baseline:
    """The baseline of all these rows; of none it is unknown."""
    ratios, kls = [], []
    for first, last in spans(len(rows), min(batch, plan.groups or batch)):
        part = rows.rollout(range(first, last), device)
        found = look(part, plan)
        assert found.ref is not None, "KTO has a reference"
        assert found.kl is not None, "whose states are live here"
        ratios.append(torch.where(part.mask, found.logprobs - found.ref, 0.0).sum(1))
        kls.append(torch.where(part.mask, found.kl, 0.0).sum(1))
    if not ratios:
        return Baseline(None, None, 0)
    if kind == "mismatched":
        return mismatched_baseline(torch.cat(ratios))
    kl = torch.cat(kls)[:, None]
    return prefix_baseline(kl, torch.ones_like(kl, dtype=torch.bool))
