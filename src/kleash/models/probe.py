"""Which of the paths a model supports is measured at load, never inferred from its name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kleash.errors import RunError, UsageError
from kleash.models.anatomy import run_body
from kleash.models.exhausted import is_out_of_memory
from kleash.models.paths import PathName, positions, prefill
from kleash.models.policy import Policy
from kleash.tensors import Rollout

#: Largest difference of hidden states, relative to the largest: rounding passes, a wrong mask or position does not.
_ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}
#: Largest difference of a gradient, relative to its length. A path whose prompt gets no gradient is off by about 1.
_GRADIENT = {torch.float64: 1e-6, torch.float32: 1e-2, torch.bfloat16: 0.25, torch.float16: 0.25}


@dataclass(frozen=True, slots=True)
class Ways:
    """The paths that a model passed; "plain" is always the last of both.

    training: exact in values and gradients. reading: exact in values, for passes without gradients; a model that keeps
    a recurrent state of its prompt shares it there and not in training.
    """

    training: tuple[PathName, ...]
    reading: tuple[PathName, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    hidden: Float[Tensor, "M H"]
    gradient: Float[Tensor, " K"] | None


def probe_paths(policy: Policy) -> Ways:
    """Runs each path, in the mode that training takes, on two prompts of unequal length and compares with single rows.

    The single rows have no padding and run in `eval()`, the mode that samples.

    Raises:
        RunError: not even the plain path agrees, so padding changes this model's numbers, or it cannot go on from a
            cache, which sampling needs.
        UsageError: only activation checkpointing, or the training mode it needs, changes its numbers.
    """
    rollout, name = _sample(policy), type(policy.causal).__name__
    dtype = policy.compute or policy.causal.dtype
    with policy.evaluating():
        try:
            truth = _seen(policy, lambda: _single_rows(policy, rollout))
        except Exception as error:
            raise RunError(f"{name} cannot run a row of tokens: {_first_line(error)}") from error
    plain = _try(policy, rollout, "plain")
    if not _close(plain, truth, dtype):
        _refuse(policy, rollout, truth, plain)
    _check_sampling(policy, rollout, truth, dtype)
    shared: list[PathName] = [path for path in _ALL if path != "plain"]
    training: list[PathName] = [path for path in shared if _differentiates(_try(policy, rollout, path), truth, dtype)]
    reading: list[PathName] = [
        path for path in shared if _close(_try(policy, rollout, path, gradient=False), truth, dtype)
    ]
    return Ways(training=(*training, "plain"), reading=(*reading, "plain"))


_ALL: tuple[PathName, ...] = get_args(PathName)


def _try(policy: Policy, rollout: Rollout, path: PathName, *, gradient: bool = True) -> _Seen | Exception:
    def run() -> Tensor:
        return policy.hidden(rollout, path)[rollout.mask]

    try:
        if gradient:
            return _seen(policy, run)
        with torch.no_grad():
            return _Seen(run().float(), None)
    except Exception as error:  # a model that cannot run a path, or not backwards, says so in its own way
        if is_out_of_memory(error):
            raise
        return error


def _close(seen: _Seen | Exception, truth: _Seen, dtype: torch.dtype) -> bool:
    if isinstance(seen, Exception):
        return False
    return float((seen.hidden - truth.hidden).abs().max()) <= _ROUNDING[dtype] * float(truth.hidden.abs().max())


def _differentiates(seen: _Seen | Exception, truth: _Seen, dtype: torch.dtype) -> bool:
    if isinstance(seen, Exception) or seen.gradient is None or truth.gradient is None or not _close(seen, truth, dtype):
        return False
    return float((seen.gradient - truth.gradient).norm()) <= _GRADIENT[dtype] * float(truth.gradient.norm())


def _seen(policy: Policy, run: Callable[[], Tensor]) -> _Seen:
    """Hidden states, and the gradient of a fixed projection of them for the body's smallest parameters."""
    with _differentiable(policy.body) as chosen, torch.enable_grad():
        hidden = run().float()
        direction = torch.cos(torch.arange(hidden.numel(), device=hidden.device)).view(hidden.shape)
        found = torch.autograd.grad((hidden * direction).sum(), chosen, allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(chosen, found, strict=True)]
    return _Seen(hidden.detach(), torch.cat([part.detach().float().flatten() for part in parts]))


@contextmanager
def _differentiable(body: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Norms and biases of every layer, or where there are none its smallest matrices; frozen ones too meanwhile."""
    floating = [p for p in body.parameters() if p.is_floating_point()]
    chosen = [p for p in floating if p.ndim <= 1] or sorted(floating, key=Tensor.numel)[:8]
    flags = [p.requires_grad for p in chosen]
    try:
        for parameter in chosen:
            parameter.requires_grad_(True)
        yield chosen
    finally:
        for parameter, flag in zip(chosen, flags, strict=True):
            parameter.requires_grad_(flag)


def _refuse(policy: Policy, rollout: Rollout, truth: _Seen, plain: _Seen | Exception) -> None:
    """Raises: only the training mode is at fault, a padded row does not run at all, or gives other numbers."""
    name, dtype = type(policy.causal).__name__, policy.compute or policy.causal.dtype
    if policy.training:
        with policy.evaluating():
            if _close(_try(policy, rollout, "plain"), truth, dtype):
                raise UsageError(
                    f"{name} computes other numbers in training mode, which activation checkpointing needs, than when "
                    "it samples (noise of its own, or no support for it); set model.gradient_checkpointing = false"
                )
    if isinstance(plain, Exception):
        raise RunError(f"{name} cannot run a padded row forwards and backwards: {_first_line(plain)}") from plain
    raise RunError(
        f"{name} gives other numbers for a padded row than for the same row alone, so its log-probs would depend on "
        "the batch; kleash cannot train it"
    )


@torch.no_grad()
def _check_sampling(policy: Policy, rollout: Rollout, truth: _Seen, dtype: torch.dtype) -> None:
    name = type(policy.causal).__name__
    with policy.evaluating():
        try:
            seen = _Seen(_step_by_step(policy, rollout).float(), None)
        except Exception as error:
            raise RunError(
                f"{name} cannot go on from a cache of its prompt, which sampling needs: {_first_line(error)}"
            ) from error
    if not _close(seen, truth, dtype):
        raise RunError(
            f"{name} gives other numbers token by token, with a cache, than for the whole row, so samples would not "
            "follow the policy that is scored; kleash cannot train it"
        )


def _step_by_step(policy: Policy, rollout: Rollout) -> Float[Tensor, "M H"]:
    """As the sampler does: each prompt once, its cache repeated for the group, then a token at a time."""
    group = rollout.group
    with policy.autocast():
        first, cache = prefill(policy.body, policy.config, rollout.prompt_ids, rollout.prompt_mask)
        cache.reorder_cache(group)
        found, mask = [first[group]], rollout.prompt_mask[group]
        for t in range(rollout.mask.shape[1] - 1):
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            out = run_body(policy.body, rollout.completion_ids[:, t : t + 1], mask, positions(mask)[:, -1:], cache)
            found.append(out.last_hidden_state[:, -1])
    return torch.stack(found, 1)[rollout.mask]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
            out = run_body(policy.body, ids, None, positions(torch.ones_like(ids, dtype=torch.bool)))
        rows.append(out.last_hidden_state[0, len(prompt) - 1 :])
    return torch.cat(rows)
