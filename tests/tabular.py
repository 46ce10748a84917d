"""Tabular autoregressive policies, small enough to sum over every sequence: what the proofs compare with.

A policy is one tensor of logits, a row for each prefix (shape [n_prefixes(V, T), V]); row 0 is the empty prefix. All
expectations are exact sums over `Sequences`, in float64, and exact gradients are autograd's through those sums.
Nothing here imports kleash.

    e = enumerate_sequences(V=3, T=3, eos=0)
    policy, reference = at_distance(seed=1, e=e, kl=0.2)
    sequence_kl(policy, reference, e)                                   # exact; its gradient is the target
    expected_gradient(per_sequence_loss, policy, probabilities(policy, e))  # what sampling sees on average
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sequences:
    """Every sequence of a tabular model, once. S sequences, T positions, V tokens.

    ids [S, T]: the tokens (after an end token: more end tokens, which do not count). mask [S, T]: True up to and
    including the first end token. prefix [S, T]: the row of the logits that each position is drawn from.
    """

    V: int
    T: int
    eos: int | None
    ids: Tensor
    mask: Tensor
    prefix: Tensor


def n_prefixes(V: int, T: int) -> int:
    return sum(V**t for t in range(T))


def enumerate_sequences(V: int, T: int, eos: int | None = None) -> Sequences:
    """All V^T sequences; with `eos`, which absorbs, each sequence that ends early appears once."""
    ids, mask, prefix = [], [], []
    for tokens in product(range(V), repeat=T):
        end = tokens.index(eos) + 1 if eos in tokens else T
        if any(token != eos for token in tokens[end:]):
            continue
        rows, row = [], 0
        for token in tokens:
            rows.append(row)
            row = row * V + 1 + token  # the children of row r are V·r + 1 … V·r + V
        ids.append(tokens)
        mask.append([t < end for t in range(T)])
        prefix.append(rows)
    return Sequences(V, T, eos, torch.tensor(ids), torch.tensor(mask), torch.tensor(prefix))


def next_logprobs(logits: Tensor, e: Sequences) -> Tensor:
    """log π(· | prefix) at each position of each sequence: [S, T, V]."""
    return logits.log_softmax(-1)[e.prefix]


def token_logprobs(logits: Tensor, e: Sequences) -> Tensor:
    """log π(y_t | prefix): [S, T], 0 where the token does not count."""
    picked = next_logprobs(logits, e).gather(-1, e.ids[..., None])[..., 0]
    return torch.where(e.mask, picked, 0.0)


def sequence_logprobs(logits: Tensor, e: Sequences) -> Tensor:
    """log P(y): [S]."""
    return token_logprobs(logits, e).sum(1)


def probabilities(logits: Tensor, e: Sequences) -> Tensor:
    """P(y), detached: [S], summing to 1."""
    return sequence_logprobs(logits.detach(), e).exp()


def sequence_kl(policy: Tensor, reference: Tensor, e: Sequences) -> Tensor:
    """KL(policy ‖ reference) of whole sequences, Σ_y P (log P − log Q); differentiable."""
    log_p, log_q = sequence_logprobs(policy, e), sequence_logprobs(reference, e)
    return (log_p.exp() * (log_p - log_q)).sum()


def position_kl(policy: Tensor, reference: Tensor, e: Sequences, *, forward: bool = False) -> Tensor:
    """KL at each position's prefix over the vocabulary, [S, T], differentiable; 0 where no token counts.

    policy ‖ reference, or with `forward` reference ‖ policy.
    """
    p, q = next_logprobs(policy, e), next_logprobs(reference, e)
    if forward:
        p, q = q, p
    return torch.where(e.mask, (p.exp() * (p - q)).sum(-1), 0.0)


def expected_gradient(loss: Tensor, policy: Tensor, weight: Tensor) -> Tensor:
    """E ∇loss for a per-sequence `loss` [S]: Σ_y weight(y) ∇loss(y), the weights being the sampler's P(y)."""
    (gradient,) = torch.autograd.grad((weight.detach() * loss).sum(), policy, retain_graph=True)
    return gradient


def each_gradient(loss: Tensor, policy: Tensor) -> Tensor:
    """∇loss of each element: [*loss.shape, n_parameters]."""
    flat = loss.reshape(-1)
    (jacobian,) = torch.autograd.grad(
        flat, policy, torch.eye(flat.numel(), dtype=flat.dtype), is_grads_batched=True, retain_graph=True
    )
    return jacobian.reshape(*loss.shape, -1)


def to_go(x: Tensor) -> Tensor:
    """Σ_{n ≥ t} x_n along the positions [S, T]; subtract x for what comes strictly after t."""
    return x.flip(1).cumsum(1).flip(1)


def random_logits(seed: int, e: Sequences) -> Tensor:
    """A leaf of standard-normal logits in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    rows = n_prefixes(e.V, e.T)
    return torch.randn(rows, e.V, generator=generator, dtype=torch.float64).requires_grad_()


def at_distance(seed: int, e: Sequences, kl: float) -> tuple[Tensor, Tensor]:
    """A (policy, reference) pair with KL(policy ‖ reference) = `kl` nats per sequence, to 1e-9 and never below.

    The reference is random; the policy lies from it along a random direction in logit space, found by bisection.
    """
    reference, direction = random_logits(2 * seed, e).detach(), random_logits(2 * seed + 1, e).detach()
    low, high = 0.0, 1.0
    while sequence_kl(reference + high * direction, reference, e) < kl:
        high *= 2
        if high > 16:  # the policy has settled on one sequence: its KL grows no more
            raise ValueError(f"along the direction of seed {seed} no policy lies {kl} nats away; take another")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sequence_kl(reference + middle * direction, reference, e) < kl else (low, middle)
    return (reference + high * direction).requires_grad_(), reference
