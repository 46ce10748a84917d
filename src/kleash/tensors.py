"""The records that hold tensors. Shapes: N prompts, G completions a prompt, B = N·G, P prompt and T completion tokens.

Whole prompt groups are the unit of batching: rows of a group are contiguous, `group` is non-decreasing, and every
selection is a set of groups, so that the prompt is stored and computed once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class Rollout:
    """Prompts and their sampled completions.

    Prompts are left-padded, completions right-padded. `mask` is True for the tokens that count: an end token counts
    only where it was sampled; padding and forced tokens never do. `sampler` is the sampler's own log-prob of each
    token (nats; 0 where mask is False). `truncated` is True where generation stopped at the length limit.
    `weight` is how much each prompt group counts in the loss: None means 1 each; a proof that replaces the sampler
    by enumeration gives each group its probability (times N).
    `policy_step` is the step whose weights drew each completion, as its sampler says; None: the step's own.
    """

    prompt_ids: Int[Tensor, "N P"]
    prompt_mask: Bool[Tensor, "N P"]
    completion_ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    group: Int[Tensor, " B"]
    sampler: Float[Tensor, "B T"]
    truncated: Bool[Tensor, " B"]
    weight: Float[Tensor, " N"] | None = None
    policy_step: Int[Tensor, " B"] | None = None

    @property
    def n_prompts(self) -> int:
        return self.prompt_ids.shape[0]

    def rows(self, first: int, last: int) -> slice:
        """The rows of groups first … last−1, as a slice of B."""
        start, stop = torch.searchsorted(self.group, torch.tensor([first, last], device=self.group.device)).tolist()
        return slice(start, stop)

    def groups(self, first: int, last: int) -> "Rollout":
        """Groups first … last−1 as a rollout of their own, trimmed to their longest prompt and completion."""
        rows = self.rows(first, last)
        prompts = self.prompt_mask[first:last]
        p = int(prompts.sum(1).max())
        t = max(1, int(self.mask[rows].any(0).nonzero().max()) + 1) if self.mask[rows].any() else 1
        P = self.prompt_ids.shape[1]
        return Rollout(
            prompt_ids=self.prompt_ids[first:last, P - p :],
            prompt_mask=prompts[:, P - p :],
            completion_ids=self.completion_ids[rows, :t],
            mask=self.mask[rows, :t],
            group=self.group[rows] - first,
            sampler=self.sampler[rows, :t],
            truncated=self.truncated[rows],
            weight=None if self.weight is None else self.weight[first:last],
            policy_step=None if self.policy_step is None else self.policy_step[rows],
        )


def merged(parts: Sequence[Rollout], pad_id: int) -> Rollout:
    """Rollouts one after the other as one, padded to the longest prompt and completion; none of them is weighted."""
    if len(parts) == 1:
        return parts[0]
    P, T = (max(getattr(part, name).shape[1] for part in parts) for name in ("prompt_ids", "completion_ids"))

    def joined(name: str, prompt: bool, value: int = 0) -> Tensor:
        columns = [getattr(part, name) for part in parts]
        rooms = [(P - c.shape[1], 0) if prompt else (0, T - c.shape[1]) for c in columns]
        return torch.cat([pad(c, room, value=value) for c, room in zip(columns, rooms, strict=True)])

    steps = [part.policy_step for part in parts if part.policy_step is not None]
    before = [sum(part.n_prompts for part in parts[:i]) for i in range(len(parts))]
    return Rollout(
        prompt_ids=joined("prompt_ids", prompt=True, value=pad_id),
        prompt_mask=joined("prompt_mask", prompt=True),
        completion_ids=joined("completion_ids", prompt=False, value=pad_id),
        mask=joined("mask", prompt=False),
        group=torch.cat([part.group + first for part, first in zip(parts, before, strict=True)]),
        sampler=joined("sampler", prompt=False),
        truncated=torch.cat([part.truncated for part in parts]),
        policy_step=torch.cat(steps) if len(steps) == len(parts) else None,
    )


@dataclass(frozen=True, slots=True)
class Head:
    """How final hidden states become logits: softcap·tanh((scale·(h Wᵀ + bias)) / softcap), rows ≥ `vocab` removed.

    `softcap` None: no cap. `vocab` is the number of rows the tokenizer can produce; padding rows beyond it have
    probability 0 everywhere (sampling, scoring, KL alike).
    """

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, " V"] | None
    vocab: int
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class ReferenceStates:
    """The reference's final hidden states at the positions that predict each completion token, and its head.

    `origin`: those of the first reference, where this one has moved away from it. `others`: further references; the KL
    is the sum of each one's, times its `weight`.
    """

    hidden: Float[Tensor, "B T H"]
    head: Head
    origin: "ReferenceStates | None" = None
    weight: float = 1.0
    others: tuple["ReferenceStates", ...] = ()

    def rows(self, rows: slice, width: int) -> "ReferenceStates":
        origin = None if self.origin is None else self.origin.rows(rows, width)
        others = tuple(other.rows(rows, width) for other in self.others)
        return replace(self, hidden=self.hidden[rows, :width], origin=origin, others=others)


@dataclass(frozen=True, slots=True)
class Look:
    """What one forward pass of the policy over a rollout sees; live (differentiable) unless made under no_grad.

    logprobs: log π(token). ref: log π_ref(token). kl: exact KL(π(·|prefix) ‖ π_ref(·|prefix)). entropy: of
    π(·|prefix). All in nats, per position, fp32 (float64 for a float64 model). ref and kl are None without a
    reference; of several they are the weighted sums of each one's. `values` are the critic's, of the state before each
    token, in units of reward; None without a critic.
    renyi: Rényi divergence D_α(π(·|prefix) ‖ π_ref(·|prefix)) of the order that was asked for; None if none was.
    kl_origin: exact KL to the first reference, detached; None unless the reference has moved.
    weight: what the penalty multiplies the divergence of each position by, after the token sampled there; None: 1.
    Numbers where the rollout's mask is False are finite and mean nothing.
    """

    logprobs: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    ref: Float[Tensor, "B T"] | None = None
    kl: Float[Tensor, "B T"] | None = None
    values: Float[Tensor, "B T"] | None = None
    renyi: Float[Tensor, "B T"] | None = None
    kl_origin: Float[Tensor, "B T"] | None = None
    weight: Float[Tensor, "B T"] | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """What each token of a step is credited with, computed once, before the step's first update; all detached.

    `advantage`, in units of reward, has the penalty's charge to come in it. `scale` is what it was multiplied by (1,
    or 1/σ where it was normalised): the KL's own term, which stands in the loss, takes it too. `values` are the
    critic's before the update and `returns` what they should have been; None without a critic.
    """

    advantage: Float[Tensor, "B T"]
    scale: float = 1.0
    returns: Float[Tensor, "B T"] | None = None
    values: Float[Tensor, "B T"] | None = None

    def rows(self, rows: slice, width: int) -> "Credit":
        return Credit(
            advantage=self.advantage[rows, :width],
            scale=self.scale,
            returns=None if self.returns is None else self.returns[rows, :width],
            values=None if self.values is None else self.values[rows, :width],
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A rollout with all that its loss needs.

    score is the rewarder's number per sample, 0 where `scored` is False (such samples leave the loss). `old` is
    log π(token) when the rollout was made; None means the policy has not moved since (every ratio is exactly 1).
    `credit` is there for algorithms that credit a whole step at once; None for those that do it in their loss.
    `baseline` is the trained-on score of the prompt's greedy completion; None for algorithms that do not ask for it.
    `correction` multiplies the reward's token losses, for the sampler was not the policy; None: nothing is corrected.
    """

    rollout: Rollout
    score: Float[Tensor, " B"]
    scored: Bool[Tensor, " B"]
    reference: ReferenceStates | None = None
    old: Float[Tensor, "B T"] | None = None
    credit: Credit | None = None
    baseline: Float[Tensor, " B"] | None = None
    correction: Float[Tensor, "B T"] | None = None

    @property
    def mask(self) -> Bool[Tensor, "B T"]:
        """Tokens that enter the loss: counted ones of scored samples."""
        return self.rollout.mask & self.scored[:, None]

    def groups(self, first: int, last: int) -> "Batch":
        """Groups first … last−1 as a batch of their own."""
        rollout = self.rollout.groups(first, last)
        rows, width = self.rollout.rows(first, last), rollout.mask.shape[1]
        return Batch(
            rollout=rollout,
            score=self.score[rows],
            scored=self.scored[rows],
            reference=None if self.reference is None else self.reference.rows(rows, width),
            old=None if self.old is None else self.old[rows, :width],
            credit=None if self.credit is None else self.credit.rows(rows, width),
            baseline=None if self.baseline is None else self.baseline[rows],
            correction=None if self.correction is None else self.correction[rows, :width],
        )
