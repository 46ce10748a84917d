"""A member without another scored one beside it has nothing to be compared with: it must not move the policy."""

import pytest
import torch

from kleash.algorithms import GRPO, RLOO, Totals
from kleash.kl.penalties import NoPenalty
from kleash.tensors import Batch, Look, Rollout


@pytest.mark.parametrize("kind", [RLOO, GRPO])
@pytest.mark.parametrize("off_policy", ["truncated", "full"])
def test_a_lone_scored_member_has_no_reward_gradient(kind, off_policy):
    logprobs = torch.tensor([[-1.0, -2.0], [-0.5, -1.5], [-1.0, -0.3], [-2.0, -0.7]], requires_grad=True)
    mask = torch.ones(4, 2, dtype=torch.bool)
    rollout = Rollout(
        prompt_ids=torch.zeros(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1, dtype=torch.bool),
        completion_ids=torch.zeros(4, 2, dtype=torch.long),
        mask=mask,
        group=torch.tensor([0, 0, 1, 1]),
        sampler=torch.zeros(4, 2),
        truncated=torch.zeros(4, dtype=torch.bool),
    )
    batch = Batch(
        rollout=rollout,
        score=torch.tensor([3.0, 0.0, 1.0, -1.0]),
        scored=torch.tensor([True, False, True, True]),
        old=logprobs.detach() - 0.1,
    )
    algorithm = kind(group_size=2, clip="none", off_policy=off_policy)
    loss = algorithm.loss(Look(logprobs, torch.zeros(4, 2)), batch, Totals(3, 6, 2, 1.0), NoPenalty(), 0.0)
    (gradient,) = torch.autograd.grad(loss.value, logprobs)
    assert torch.equal(gradient[:2], torch.zeros(2, 2))  # the lone one, and the one without a score
    assert (gradient[2:] != 0).all()
