"""Do kleash and TRL differentiate the same thing? Loss and gradient of both, from the same weights and samples.

The objective is TRL's `dr_grpo` with its k3 in the loss, the ratio live (its default); in kleash that is the default
algorithm with kl.penalty = { kind = "in_loss", estimator = "k3" }. kleash computes a group's own mean as leave-one-out
times 1 − 1/G, on reward and KL alike, so beta·G/(G − 1) here is TRL's beta.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.one_step import MODEL, SEED, G, N, T, Work, prompts, settings
from torch import Tensor

#: Large enough that the KL is a good part of the gradient.
BETA = 0.5
#: Noise on every weight that is trained, as a share of its tensor's deviation: the policy has left its reference.
NOISE = 0.05
#: Noise on an adapter's weights, whose B is 0 at first.
ADAPTER_NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Agreement:
    """Loss and gradient norm, kleash's and TRL's, and ‖g − g'‖/‖g'‖ over all weights."""

    loss: tuple[float, float]
    norm: tuple[float, float]
    apart: float


def compare(work: Work, trainer: Any, out: Path) -> Agreement:
    """`trainer`: TRL's for this work, with dr_grpo, no scaling of rewards, and BETA."""
    from kleash.algorithms import Totals
    from kleash.models.sampling import sample
    from kleash.tensors import Batch
    from kleash.training.collect import reference_states
    from kleash.training.passes import differentiate

    job = _job(work, trainer.processing_class, out)
    policy, texts = job.loaded.policy, job.prompts.prompts[:N]
    _leave(policy.model, work.lora)
    _copy(policy.model, trainer.model)
    rollout = sample(
        policy, job.encode(list(texts)), job.sampling, job.loaded.ends, group_size=G, seed=SEED, step=0,
        prompt_index=list(range(N)),
    )  # fmt: skip
    rows = torch.arange(N * G)[:, None]
    rollout = replace(rollout, mask=rollout.mask & (torch.arange(T) < T - rows))  # else the lengths are all one
    score = torch.randn(N * G, generator=torch.Generator().manual_seed(SEED))
    batch = Batch(rollout, score, torch.ones(N * G, dtype=torch.bool), reference_states(job, rollout, job.plan))
    totals = Totals(N * G, int(rollout.mask.sum()), T, float(score.std(correction=0)))
    ours = differentiate(policy, batch, job.update, job.plan, totals, BETA * G / (G - 1)).loss
    theirs = _trl(trainer, rollout, score)
    pairs = [(p.grad, q.grad) for p, q in _pairs(policy.model, trainer.model)]
    squares = torch.tensor([[float(p.square().sum()), float(q.square().sum()), float((p - q).square().sum())]
                            for p, q in pairs], dtype=torch.float64)  # fmt: skip
    norm, norm_trl, apart = squares.sum(0).sqrt().tolist()
    return Agreement((ours, theirs), (norm, norm_trl), apart / norm_trl)


def _job(work: Work, tokenizer: Any, out: Path) -> Any:
    from kleash.rewards.load import load_reward
    from kleash.training.data import as_prompts
    from kleash.training.setup import build_job
    from kleash.training.toml import parse_config, with_settings

    penalty = {"kl.penalty.kind": "in_loss", "kl.penalty.estimator": "k3", "train.min_new_tokens": 0}
    tree = {
        "out": str(out),
        "model": {"policy": MODEL},
        "data": {"prompts": "(given in Python)"},
        "rewards": [{"use": "vader"}],
    }
    config = parse_config(with_settings(tree, settings(work, 1, **penalty)))
    return build_job(config, as_prompts(prompts(work, tokenizer), "prompt"), [load_reward("vader")])


@torch.no_grad()
def _leave(model: Any, lora: bool) -> None:
    noise = torch.Generator().manual_seed(SEED)
    for _, weight in _trained(model):
        scale = ADAPTER_NOISE if lora else NOISE * float(weight.std())
        weight += scale * torch.randn(weight.shape, generator=noise)


@torch.no_grad()
def _copy(source: Any, target: Any) -> None:
    for p, q in _pairs(source, target):
        q.copy_(p)


def _trained(model: Any) -> list[tuple[str, torch.nn.Parameter]]:
    return sorted((name, weight) for name, weight in model.named_parameters() if weight.requires_grad)


def _pairs(ours: Any, theirs: Any) -> Iterator[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
    for (name, p), (other, q) in zip(_trained(ours), _trained(theirs), strict=True):
        assert name == other, f"{name} is {other} in TRL's model"
        yield p, q


def _trl(trainer: Any, rollout: Any, score: Tensor) -> float:
    """TRL's own loss on this rollout, differentiated."""
    prompt_ids, prompt_mask = (x[rollout.group] for x in (rollout.prompt_ids, rollout.prompt_mask.long()))
    completion_ids, completion_mask = rollout.completion_ids, rollout.mask.long()
    rows = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
    reference = trainer.ref_model if trainer.ref_model is not None else trainer.model
    off = nullcontext() if trainer.ref_model is not None else trainer.model.disable_adapter()
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    with torch.no_grad(), off:
        logprobs = trainer._get_per_token_logps_and_entropies(reference, *rows, T)[0]
    groups = score.view(N, G)
    loss = trainer._compute_loss(
        trainer.model,
        {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": (groups - groups.mean(1, keepdim=True)).flatten(),
            "ref_per_token_logps": logprobs,
        },
    )
    loss.backward()
    return float(loss.detach())
