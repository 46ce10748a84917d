"""Which of the paths a model supports is measured at load, never inferred from its name."""

from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from kleash.errors import KleashError, RunError
from kleash.models.paths import PathName, positions
from kleash.models.policy import Policy
from kleash.tensors import Rollout

#: Largest difference of hidden states, relative to the largest: rounding passes, a wrong mask or position does not.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}


@torch.no_grad()
def probe_paths(policy: Policy) -> tuple[PathName, ...]:
    """Runs each path on two prompts of unequal length and compares with single rows without padding.

    Raises:
        RunError: not even the plain path agrees, so padding changes this model's numbers.
    """
    rollout = _sample(policy)
    truth = _single_rows(policy, rollout)
    tolerance = _ROUNDING[policy.compute or policy.causal.dtype] * float(truth.abs().max())
    passed = tuple(path for path in get_args(PathName) if _agrees(policy, rollout, path, truth, tolerance))
    if "plain" not in passed:
        raise RunError(
            f"{type(policy.causal).__name__} gives other numbers for a padded row than for the same row alone, so its "
            "log-probs would depend on the batch; kleash cannot train it"
        )
    return passed


def _agrees(policy: Policy, rollout: Rollout, path: PathName, truth: Float[Tensor, "M H"], tolerance: float) -> bool:
    try:
        hidden = policy.hidden(rollout, path)[rollout.mask]
    except (KleashError, RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError):
        return False  # a model that cannot run a path says so in its own way
    return float((hidden.float() - truth).abs().max()) <= tolerance


def _sample(policy: Policy) -> Rollout:
    """Two prompts (5 and 3 tokens), two completions each, of unequal length; ids spread over the vocabulary."""
    device, vocab = policy.device, policy.recipe.vocab
    ids = torch.linspace(0, vocab - 1, 26, device=device).long()
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool, device=device)
    return Rollout(
        prompt_ids=ids[:10].view(2, 5),
        prompt_mask=torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], dtype=torch.bool, device=device),
        completion_ids=ids[10:].view(4, 4),
        mask=mask,
        group=torch.tensor([0, 0, 1, 1], device=device),
        sampler=torch.zeros(4, 4, device=device),
        truncated=torch.zeros(4, dtype=torch.bool, device=device),
    )


def _single_rows(policy: Policy, rollout: Rollout) -> Float[Tensor, "M H"]:
    """The same hidden states with no batch, no padding and no mask: one row at a time."""
    rows = []
    for i, n in enumerate(rollout.group.tolist()):
        prompt = rollout.prompt_ids[n][rollout.prompt_mask[n]]
        completion = rollout.completion_ids[i][rollout.mask[i]]
        ids = torch.cat([prompt, completion[:-1]])[None]
        with policy.autocast():
            out = policy.body(
                input_ids=ids, position_ids=positions(torch.ones_like(ids, dtype=torch.bool)), use_cache=False
            )
        rows.append(out.last_hidden_state[0, len(prompt) - 1 :])
    return torch.cat(rows).float()
