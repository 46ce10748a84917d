"""REINFORCE++ and best-of-n through the real loop, enumerated; what is kept of a group, against a slow loop."""

import pytest
import torch
from tests.algorithms.test_variants import LENGTHS, G, case
from tests.algorithms.test_variants import C as CONSTANT
from tests.tolerances import EXACT, LOOP
from tests.training.enumerated import (
    BETA,
    SPACE,
    C,
    Setting,
    gradient,
    logits_of,
    objective,
    pairs,
    run_step,
    scores,
    singles,
    small_policy,
    token_logprobs,
)
from torch import Tensor

from kleash.algorithms import BestOfN, ReinforcePP, Totals
from kleash.kl.penalties import Exact, InReward, NoPenalty
from kleash.tensors import Batch, Look

PLAIN = ReinforcePP(whiten=False, clip="none")
GROUPED = ReinforcePP(whiten=False, clip="none", baseline="group", group_size=2)


def relative(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@pytest.mark.parametrize(
    ("algorithm", "penalty"),
    [
        (PLAIN, InReward()),
        (PLAIN, Exact()),
        pytest.param(GROUPED, InReward(), marks=pytest.mark.slow),
        pytest.param(GROUPED, Exact(), marks=pytest.mark.slow),
    ],
    ids=["in_reward", "exact", "group in_reward", "group exact"],
)
def test_reinforce_pp_is_the_sequence_gradient(algorithm, penalty, tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    truth = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    rollout = singles(policy) if algorithm.group_size == 1 else pairs(policy)
    found = run_step(Setting(algorithm, penalty), policy, reference, rollout, tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


@pytest.mark.parametrize("penalty", [InReward(), Exact()], ids=["in_reward", "exact"])
def test_normalised_reinforce_pp_is_divided_by_one_deviation(penalty, tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    truth = -gradient(objective(policy, reference, BETA, scores()), policy) / C
    p, q = logits_of(policy).detach(), logits_of(reference).detach()
    if isinstance(penalty, InReward):
        charge = token_logprobs(p) - token_logprobs(q)
    else:
        later = torch.where(SPACE.mask, (p.exp() * (p - q)).sum(-1), 0.0)
        charge = torch.cat([later[:, 1:], torch.zeros_like(later[:, :1])], 1)  # of the state that a token leads to
    advantages = [
        float(scores()[i] - BETA * charge[i, t:][SPACE.mask[i, t:]].sum()) for i, t in SPACE.mask.nonzero().tolist()
    ]  # the sum over later tokens, one token at a time
    sigma = torch.tensor(advantages, dtype=torch.float64).std(correction=0)
    setting = Setting(ReinforcePP(clip="none"), penalty)
    found = run_step(setting, policy, reference, singles(policy), tmp_path, monkeypatch).seen[0]
    # Each sequence is once in the step, whatever its probability: mean and σ are the same numbers for all of them.
    assert relative(found, truth / sigma) < LOOP


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [NoPenalty(), Exact(), InReward()], ids=["none", "exact", "in_reward"])
def test_best_of_n_imitates_the_best_on_a_leash(penalty, tmp_path, monkeypatch):
    policy, reference = small_policy(1), small_policy(2)
    beta = 0.0 if isinstance(penalty, NoPenalty) else BETA
    reward = scores()
    log_p = token_logprobs(logits_of(policy)).sum(1)
    p = log_p.detach().exp()
    best = torch.stack([2 * p[i] * p[reward < reward[i]].sum() for i in range(len(p))])  # both orders of a pair
    leash = objective(policy, reference, beta, torch.zeros_like(reward))
    truth = -gradient((best * log_p).sum() + leash, policy) / C
    setting = Setting(BestOfN(group_size=2, clip="none"), penalty)
    found = run_step(setting, policy, reference, pairs(policy), tmp_path, monkeypatch).seen[0]
    assert relative(found, truth) < LOOP


@pytest.mark.parametrize("keep", ["best", "above_mean"])
@pytest.mark.parametrize("size", [0.0, 0.5])
def test_what_is_kept_equals_a_slow_loop(keep, size):
    new, batch = case(size)
    tied = torch.tensor([0.1, 0.1, 0.1, 0.1, 3.0, 1.0, 3.0, 2.5], dtype=new.dtype)
    scored = torch.tensor([True] * 7 + [False])
    batch = Batch(batch.rollout, torch.where(scored, tied, 0.0), scored, old=batch.old)
    assert batch.old is not None
    totals = Totals(2 * G - 1, sum(LENGTHS[:7]), CONSTANT, score_std=1.0)
    found = BestOfN(group_size=G, keep=keep, clip="none").loss(
        Look(new, torch.zeros_like(new)), batch, totals, NoPenalty(), 0.0
    )
    # The first group has no spread; of the second, 3.0 is the best twice and is above the mean of 3, 1 and 3.
    slow = torch.zeros((), dtype=new.dtype)
    for i in (4, 6):
        for t in range(LENGTHS[i]):
            slow = slow - 3 * 0.5 * (new[i, t] - batch.old[i, t]).exp() / ((2 * G - 1) * CONSTANT)
    torch.testing.assert_close(found.value, slow, rtol=EXACT, atol=EXACT)
    gradients = [torch.autograd.grad(value, new)[0] for value in (found.value, slow)]
    torch.testing.assert_close(*gradients, rtol=EXACT, atol=EXACT)


def test_above_the_mean_keeps_more_than_the_best():
    new, batch = case(0.0)
    scored = torch.ones(2 * G, dtype=torch.bool)
    batch = Batch(batch.rollout, torch.tensor([1.0, 2.0, 3.0, 4.0] * 2, dtype=new.dtype), scored, old=batch.old)
    totals = Totals(2 * G, sum(LENGTHS), CONSTANT, score_std=1.0)
    pulled = {}
    for keep in ("best", "above_mean"):
        loss = BestOfN(group_size=G, keep=keep).loss(Look(new, torch.zeros_like(new)), batch, totals, NoPenalty(), 0.0)
        pulled[keep] = torch.autograd.grad(loss.value, new)[0].abs().sum(1).nonzero()[:, 0].tolist()
    assert pulled == {"best": [3, 7], "above_mean": [2, 3, 6, 7]}
