"""The texts' part of an update: a language-model loss, its gradient added to the minibatch's."""

import torch

from kleash.algorithms import MixesTexts
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.tensors import Rollout
from kleash.training.passes import Passed, Update, spans


def with_texts(policy: Policy, texts: Rollout, update: Update, plan: Plan, done: Passed) -> Passed:
    """Adds weight · ∇(mean −log π per token) to `.grad`, pass by pass, and both losses to what the passes saw.

    At temperature 1 and by the plan's path. The head is the fused one: no logits of text × vocabulary.
    """
    assert isinstance(update.algorithm, MixesTexts)
    assert update.algorithm.ptx is not None
    ptx, device = update.algorithm.ptx, policy.device
    total, tokens = 0.0, int(texts.mask.sum())
    for first, last in spans(texts.n_prompts, plan.groups or texts.n_prompts):
        part = _on(texts.groups(first, last), device)
        look = policy(part, path=plan.path, rows=plan.rows, valued=False)
        loss = ptx.loss(look.logprobs, part.mask, tokens=tokens)
        (ptx.weight * loss).backward()
        total += float(loss.detach())
    return done._replace(loss=done.loss + ptx.weight * total, ptx_loss=total)


def _on(rollout: Rollout, device: torch.device) -> Rollout:
    return Rollout(
        **{
            name: value.to(device)
            for name in Rollout.__dataclass_fields__
            if (value := getattr(rollout, name)) is not None
        }
    )
