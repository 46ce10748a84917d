"""A tabular policy in the place of the language model, for `kleash.training.learn`: training by exact expectations.

One update sees every ordered group of sequences, weighted by its probability under the policy of the moment, so that
the optimizer takes the expected gradient. Where training ends is a fixed point, to be compared with what theory says.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq, root
from tests.tabular import Sequences, enumerate_sequences, n_prefixes, probabilities, random_logits, sequence_logprobs
from torch import Tensor, nn

from kleash.algorithms import CISPO, GRPO, GSPO, PPO, RLOO, LearnsValues, NeedsGreedy, ReinforcePP, ReMax
from kleash.kl.penalties import Exact, FutureSampled, InLoss, InReward
from kleash.models.plan import Plan
from kleash.models.policy import Policy
from kleash.tensors import Batch, Look, Rollout
from kleash.training.learn import learn
from kleash.training.passes import Update

V, T, EOS = 3, 3, 0
SPACE: Sequences = enumerate_sequences(V, T, eos=EOS)
S = len(SPACE.ids)
BETA, STEPS = 0.5, 150
REFERENCE = random_logits(3, SPACE).detach()
#: A reward of each sequence, without structure, from −1 to 1.
REWARD = torch.rand(S, generator=torch.Generator().manual_seed(11), dtype=torch.float64) * 2 - 1

SEQUENCE: dict[str, Any] = {"std": "none", "length": "constant"}
UNBIASED: dict[str, Any] = {"epochs": 1, "whiten": False, "clip_value": "none"}
#: Algorithms in the settings under which their gradient is that of the sequence objective, up to a factor; and PPO with
#: λ < 1, whose critic has to be right first.
ALGORITHMS: dict[str, Any] = {
    "grpo": GRPO(group_size=2),
    "rloo": RLOO(group_size=2),
    "gspo, std none, length constant": GSPO(group_size=2, **SEQUENCE),
    "cispo, std none, length constant": CISPO(group_size=2, **SEQUENCE),
    "reinforce++, not whitened": ReinforcePP(whiten=False),
    "remax": ReMax(),
    "ppo, lambda 1, not whitened": PPO(gae_lambda=1.0, **UNBIASED),
    "ppo, lambda 0.95, not whitened": PPO(gae_lambda=0.95, vf_coef=1.0, **UNBIASED),
}
#: Penalties whose gradient is that of the sequence's KL: the posterior is where they end.
WHOLE: dict[str, Any] = {"exact": Exact(), "in_reward": InReward(), "future_sampled": FutureSampled()}
#: Reverse KLs at each position, without the KL to come.
REVERSE: dict[str, Any] = {
    "in_loss exact": InLoss(estimator="exact"),
    "in_loss k2": InLoss(estimator="k2"),
    "in_loss k3": InLoss(estimator="k3"),
}
#: The forward one, as published with GRPO.
FORWARD: dict[str, Any] = {"in_loss k3, ratio none": InLoss(estimator="k3", ratio="none")}


class Tabular(Policy):
    """Free logits, a row for each prefix, away from the reference to begin with; with `critic` a value for each."""

    def __init__(self, *, critic: bool = False) -> None:
        nn.Module.__init__(self)  # of a Policy it has the name: there is no transformers model
        self.logits = nn.Parameter(random_logits(5, SPACE).detach())
        self.values = nn.Parameter(torch.zeros(n_prefixes(V, T), dtype=torch.float64)) if critic else None

    def forward(self, rollout: Rollout, **_: Any) -> Look:
        prefix = prefixes(rollout.completion_ids)
        p, q = self.logits.log_softmax(-1)[prefix], REFERENCE.log_softmax(-1)[prefix]
        ids = rollout.completion_ids[..., None]
        return Look(
            logprobs=p.gather(-1, ids)[..., 0],
            entropy=-(p.exp() * p).sum(-1),
            ref=q.gather(-1, ids)[..., 0],
            kl=(p.exp() * (p - q)).sum(-1),
            values=None if self.values is None else self.values[prefix],
        )

    def trainable(self) -> list[nn.Parameter]:
        return list(self.parameters())


def prefixes(ids: Tensor) -> Tensor:
    """The row of the logits that each token is drawn from, as `tests.tabular` numbers them."""
    rows = [torch.zeros_like(ids[:, 0])]
    for t in range(ids.shape[1] - 1):
        rows.append(rows[-1] * V + 1 + ids[:, t])
    return torch.stack(rows, 1)


def enumerated(policy: Tabular, group_size: int) -> Batch:
    """Every ordered group of sequences (of one or two), each weighted by its probability times their number."""
    p = probabilities(policy.logits, SPACE)
    rows = torch.cartesian_prod(*[torch.arange(S)] * group_size).reshape(-1, group_size)
    return batch_of(rows, p[rows].prod(1) * len(rows))


def sampled(policy: Tabular, groups: int, group_size: int, generator: torch.Generator) -> Batch:
    """Groups drawn from the policy, as a run draws them."""
    p = probabilities(policy.logits, SPACE)
    drawn = torch.multinomial(p, groups * group_size, replacement=True, generator=generator)
    return batch_of(drawn.reshape(groups, group_size), None)


def greedy_reward(policy: Tabular) -> Tensor:
    """The reward of the sequence of the likeliest tokens."""
    row, ids = 0, []
    while len(ids) < T and EOS not in ids:
        ids.append(int(policy.logits[row].argmax()))
        row = row * V + 1 + ids[-1]
    return next(r for s, m, r in zip(SPACE.ids, SPACE.mask, REWARD, strict=True) if s[m].tolist() == ids)


def batch_of(rows: Tensor, weight: Tensor | None) -> Batch:
    n, flat = len(rows), rows.flatten()
    rollout = Rollout(
        prompt_ids=torch.zeros(n, 1, dtype=torch.long),
        prompt_mask=torch.ones(n, 1, dtype=torch.bool),
        completion_ids=SPACE.ids[flat],
        mask=SPACE.mask[flat],
        group=torch.arange(n).repeat_interleave(rows.shape[1]),
        sampler=torch.zeros(len(flat), T, dtype=torch.float64),
        truncated=torch.zeros(len(flat), dtype=torch.bool),
        weight=weight,
    )
    return Batch(rollout, REWARD[flat], torch.ones(len(flat), dtype=torch.bool))


def converged(algorithm: Any, penalty: Any, batches: Callable[[Tabular], Batch] | None = None) -> Tensor:
    """The policy's logits after STEPS of Adam, its rate falling from 0.2 to 1e-3, through the trainer's own `learn`."""
    policy = Tabular(critic=isinstance(algorithm, LearnsValues))
    optimizer = torch.optim.Adam(policy.trainable(), lr=0.2, betas=(0.7, 0.9))
    falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, (1e-3 / 0.2) ** (1 / STEPS))
    update = Update(algorithm=algorithm, penalty=penalty, length=T)
    for _ in range(STEPS):
        batch = enumerated(policy, algorithm.group_size) if batches is None else batches(policy)
        if isinstance(algorithm, NeedsGreedy):
            batch = replace(batch, baseline=greedy_reward(policy).expand(len(batch.score)))
        learn(policy, optimizer, batch, update, lambda work: work(Plan()), beta=BETA)
        falling.step()
    return policy.logits.detach()


def kl(logits: Tensor, log_q: Tensor) -> float:
    """KL(policy‖q) of whole sequences, q given by its log-probs."""
    log_p = sequence_logprobs(logits, SPACE)
    return float((log_p.exp() * (log_p - log_q)).sum())


# ── where training should end: nothing of kleash below ──────────────────────────────────────────────────────────────


def posterior() -> tuple[Tensor, float]:
    """log π* of each sequence, π* = ref·exp(R/β)/Z, and log Z: RL with a KL penalty is Bayesian inference."""
    tilted = sequence_logprobs(REFERENCE, SPACE) + REWARD / BETA
    return tilted - tilted.logsumexp(0), float(tilted.logsumexp(0))


def backwards(solve: Callable[[list[float], list[float]], list[float]]) -> Tensor:
    """log π of each sequence where each state's policy is solve(Q, ref), Q the *reward* expected after each token.

    Penalties without the KL to come are stationary where that holds at every state: from the last tokens to the first.
    """
    reward = {
        tuple(ids[:n]): r for ids, n, r in zip(SPACE.ids.tolist(), SPACE.mask.sum(1), REWARD.tolist(), strict=True)
    }
    ref = REFERENCE.softmax(-1).tolist()
    policy: dict[tuple[int, ...], list[float]] = {}

    def value(prefix: tuple[int, ...], row: int) -> float:
        q = []
        for token in range(V):
            after = (*prefix, token)
            q.append(reward[after] if after in reward else value(after, row * V + 1 + token))
        policy[prefix] = solve(q, ref[row])
        return sum(p * x for p, x in zip(policy[prefix], q, strict=True))

    value((), 0)
    total = []
    for ids, mask in zip(SPACE.ids.tolist(), SPACE.mask, strict=True):
        tokens = ids[: int(mask.sum())]
        total.append(math.fsum(math.log(policy[tuple(tokens[:t])][token]) for t, token in enumerate(tokens)))
    return torch.tensor(total, dtype=torch.float64)


def reverse_per_position(q: list[float], ref: list[float]) -> list[float]:
    """Stationary where π(a)·(Q_a − V) = β π(a)·(log(π/ref)(a) − KL): π ∝ ref·exp(Q/β)."""
    tilted = (torch.tensor(ref, dtype=torch.float64).log() + torch.tensor(q, dtype=torch.float64) / BETA).softmax(0)
    return tilted.tolist()


def forward_per_position(q: list[float], ref: list[float]) -> list[float]:
    """Stationary where π(a)·(Q_a − V) = β (π(a) − ref(a)): π(a) = β ref(a) / (λ − Q_a), λ = V + β such that Σ π = 1."""
    best = max(range(V), key=lambda a: q[a])
    found = brentq(
        lambda x: sum(BETA * r / (x - v) for r, v in zip(ref, q, strict=True)) - 1,
        q[best] + BETA * ref[best] * (1 - 1e-12),
        q[best] + BETA,
        xtol=1e-15,
    )
    return [BETA * r / (found - v) for r, v in zip(ref, q, strict=True)]


def std_by_group() -> Tensor:
    """log π of each sequence where a pair's scores are divided by its own deviation: no longer R, but who wins.

    In pairs (R − mean)/σ = ±1 whatever the scores, and the KL keeps its factor 1 − 1/G = ½. Stationary is then
    π ∝ ref·exp(w/(β/2)), w(y) = P(y wins) − P(y loses) against a sample of π itself.
    """
    log_ref = sequence_logprobs(REFERENCE, SPACE)
    sign = (REWARD[:, None] - REWARD[None, :]).sign()

    def off(log_p: np.ndarray) -> np.ndarray:
        now = torch.tensor(log_p)
        return (now - (log_ref + 2 / BETA * sign @ now.softmax(0)).log_softmax(0)).numpy()

    found = root(off, log_ref.numpy(), tol=1e-14)
    assert found.success
    return torch.tensor(found.x).log_softmax(0)
