"""Completions from the policy: each prompt is read once, its cache serves the whole group, finished rows drop out.

The recorded log-prob of a token is that of the distribution it was drawn from, computed by the sampler itself. With
top-k, top-p or min_new_tokens this is not the policy that is scored, and E[log sampler − log policy] is then a real
KL, not a numerical mismatch: `Sampling.mismatch` says so and readings over such samples must not steer beta.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict
from torch import Tensor

from kleash.errors import NotFiniteError, UsageError
from kleash.models.anatomy import run_body
from kleash.models.draw import distribution, draw, keyed_noise
from kleash.models.heads import apply
from kleash.models.paths import prefill
from kleash.models.policy import Policy
from kleash.models.room import closed_up, make_room
from kleash.models.stopping import Ends, stopped
from kleash.tensors import Head, Rollout


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn.

    `temperature` is the scored policy's as well. A completion also ends when its text contains one of `stop`, whose
    tokens count like any others. `min_new_tokens` forbids end tokens before that many tokens; it does not hold back
    `stop`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens must lie between 0 and max_new_tokens ({self.max_new_tokens}), "
                f"not {self.min_new_tokens}"
            )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(
                f"temperature must be above 0, not {self.temperature}: greedy decoding has no distribution "
                "to take a KL of; use a small temperature, or top_k = 1 to look at the likeliest text"
            )
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must lie in (0, 1] (1 keeps every token), not {self.top_p}")
        if self.top_k < 0:
            raise UsageError(f"top_k must be 0 (keeps every token) or more, not {self.top_k}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise UsageError(f"stop must be a list of non-empty strings, not {self.stop!r}")

    @property
    def greedy(self) -> "Sampling":
        """The same, with the likeliest token each time."""
        return replace(self, top_k=1, top_p=1.0)

    @property
    def mismatch(self) -> str | None:
        """Why samples do not follow the scored policy; None when they do."""
        names = ("top_k", "top_p", "min_new_tokens")
        given = [name for name, off in zip(names, (0, 1, 0), strict=True) if getattr(self, name) != off]
        if not given:
            return None
        return (
            f"sampled with {' and '.join(f'{name} = {getattr(self, name):g}' for name in given)}, "
            "so the samples do not follow the policy that is scored and sampled KL estimates are not a KL"
        )


@dataclass(slots=True)
class _Record:
    """What is written down for all B rows while they are decoded."""

    ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    sampler: Float[Tensor, "B T"]
    open: Bool[Tensor, " B"]

    @classmethod
    def blank(cls, rows: int, length: int, pad_id: int, like: Tensor) -> "_Record":
        return cls(
            ids=torch.full((rows, length), pad_id, device=like.device),
            mask=torch.zeros(rows, length, dtype=torch.bool, device=like.device),
            sampler=torch.zeros(rows, length, dtype=like.dtype, device=like.device),
            open=torch.ones(rows, dtype=torch.bool, device=like.device),
        )

    def write(self, rows: Int[Tensor, " b"], t: int, token: Int[Tensor, " b"], logprob: Float[Tensor, " b"]) -> None:
        """Token t of these rows; a row that has ended keeps its padding."""
        live = self.open[rows]
        self.ids[rows, t] = torch.where(live, token, self.ids[rows, t])
        self.mask[rows, t] = live
        self.sampler[rows, t] = torch.where(live, logprob, 0.0)


@dataclass(slots=True)
class Stream:
    """The rows still being decoded: their numbers, cache, attention mask [b, P+T] and next position."""

    policy: Policy
    rows: Int[Tensor, " b"]
    cache: Any
    attention: Int[Tensor, "b L"]
    position: Int[Tensor, " b"]
    length: int

    @classmethod
    def begin(
        cls, policy: Policy, ids: Int[Tensor, "N P"], mask: Bool[Tensor, "N P"], group_size: int, T: int
    ) -> tuple[Float[Tensor, "B H"], "Stream"]:
        """Reads each prompt once; the hidden states that predict the first tokens, repeated for the groups."""
        with policy.autocast():
            hidden, cache = prefill(policy.body, policy.config, ids, mask)
        prompt = torch.arange(len(ids), device=ids.device).repeat_interleave(group_size)
        make_room(cache, len(ids), group_size, ids.shape[1] + T - 1)
        room = torch.ones(len(prompt), T, dtype=torch.int64, device=ids.device)
        stream = cls(
            policy=policy,
            rows=torch.arange(len(prompt), device=ids.device),
            cache=cache,
            attention=torch.cat([mask.long()[prompt], room], 1),
            position=mask.sum(1)[prompt],
            length=ids.shape[1],
        )
        return policy.rounded(hidden[prompt]), stream

    def keep(self, index: Int[Tensor, " b"]) -> None:
        """Goes on with these rows only."""
        self.cache.reorder_cache(index)
        self.rows, self.attention, self.position = self.rows[index], self.attention[index], self.position[index]

    def read(self, token: Int[Tensor, " b"]) -> Float[Tensor, "b H"]:
        """Feeds one token to each row; the hidden states that predict the next."""
        self.length += 1
        with self.policy.autocast():
            seen = self.attention[:, : self.length]
            out = run_body(self.policy.body, token[:, None], seen, self.position[:, None], self.cache)
        self.position = self.position + 1
        return self.policy.rounded(out.last_hidden_state[:, -1])


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: list[list[int]],
    settings: Sampling,
    ends: Ends,
    *,
    group_size: int,
    seed: int,
    step: int,
    prompt_index: list[int],
) -> Rollout:
    """G completions of each prompt, in the precision the policy trains in, without gradients.

    The token at (prompt, sample, position) is a function of the model, `settings` and the key (seed, step,
    prompt_index, sample, position): how prompts are batched, ordered or padded does not matter beyond the rounding
    of the logits. At most N·P + N·G·(T−1) token positions go through the model.

    Args:
        prompts: token ids of each of the N prompts.
        ends: end tokens, padding, and the tokenizer if `settings.stop` is used.
        prompt_index: the prompts' numbers in the data, N different ones: part of each draw's key.

    Raises:
        UsageError: an empty prompt, no prompt, prompt_index that repeats, stop strings without a tokenizer.
        NotFiniteError: logits that are not finite.
        RunError: a model that ignores its cache.
    """
    _check(prompts, prompt_index, group_size, settings, ends)
    noise = keyed_noise(seed, step, prompt_index, group_size, settings.max_new_tokens)
    return drawn(policy, prompts, settings, ends, noise)


@torch.no_grad()
def drawn(
    policy: Policy, prompts: list[list[int]], settings: Sampling, ends: Ends, noise: Int[Tensor, "B T"]
) -> Rollout:
    """The same with the noise as given: a row for each completion of each prompt, T = max_new_tokens."""
    group_size = len(noise) // len(prompts)
    head = widened(policy.head())
    device, T = head.weight.device, settings.max_new_tokens
    prompt_ids, prompt_mask = left_padded(prompts, ends.pad_id, device)
    noise = noise.to(device)
    eos = torch.tensor(ends.eos_ids, device=device)
    record = _Record.blank(len(prompts) * group_size, T, ends.pad_id, head.weight)
    with policy.evaluating():
        hidden, stream = Stream.begin(policy, prompt_ids, prompt_mask, group_size, T)
        for t in range(T):
            rows = stream.rows
            logprobs = next_logprobs(hidden, head, settings, ends.eos_ids if t < settings.min_new_tokens else ())
            token = draw(logprobs, noise[rows, t])
            record.write(rows, t, token, logprobs.gather(-1, token[:, None])[:, 0])
            ended = torch.isin(token, eos)
            if settings.stop:
                ended |= stopped(record.ids[rows, : t + 1], settings.stop, ends.tokenizer)
            record.open[rows] &= ~ended
            n_open = int(record.open.sum())
            if n_open == 0 or t == T - 1:
                break
            if 8 * n_open <= 7 * len(rows):  # only once an eighth is idle: moving rows costs a little
                still = closed_up(record.open[rows])
                stream.keep(still)
                token = token[still]
            hidden = stream.read(token)

    drawn = stream.length - prompt_ids.shape[1] + 1  # the last token drawn is not read
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=record.ids[:, :drawn],
        mask=record.mask[:, :drawn],
        group=torch.arange(len(prompts), device=device).repeat_interleave(group_size),
        sampler=record.sampler[:, :drawn],
        truncated=record.open,
    )


def left_padded(
    prompts: list[list[int]], pad_id: int, device: torch.device | str = "cpu"
) -> tuple[Int[Tensor, "N P"], Bool[Tensor, "N P"]]:
    """Prompts as one tensor, and the mask of what is not padding."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts])
    return ids.to(device), mask.to(device)


def widened(head: Head) -> Head:
    """The head cut to the tokenizer's rows, in fp32 at least: once here instead of at every token."""
    dtype = torch.promote_types(head.weight.dtype, torch.float32)
    bias = None if head.bias is None else head.bias[: head.vocab].to(dtype)
    return replace(head, weight=head.weight[: head.vocab].to(dtype), bias=bias)


def next_logprobs(
    hidden: Float[Tensor, "b H"], head: Head, settings: Sampling, forbidden: tuple[int, ...]
) -> Float[Tensor, "b V"]:
    """Log-probs of the distribution the next token is drawn from; the head's product is never in half precision."""
    with torch.autocast(hidden.device.type, enabled=False):
        logits = apply(hidden.to(head.weight.dtype), head)
    logprobs = distribution(
        logits,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        forbidden=tuple(i for i in forbidden if i < head.vocab),
    )
    if not torch.isfinite(logprobs.amax(-1)).all():
        raise NotFiniteError("the policy's logits are not finite (NaN, infinite), so nothing can be sampled from them")
    return logprobs


def _check(prompts: list[list[int]], prompt_index: list[int], group_size: int, settings: Sampling, ends: Ends) -> None:
    if not prompts or group_size < 1:
        raise UsageError(f"nothing to sample: {len(prompts)} prompts, group size {group_size}")
    for number, prompt in zip(prompt_index, prompts, strict=True):
        if not prompt:
            raise UsageError(f"prompt {number} has no tokens")
    if len(set(prompt_index)) < len(prompt_index):
        raise UsageError("prompt_index repeats: the two prompts would be given the same noise")
    if settings.stop and ends.tokenizer is None:
        raise UsageError("stop strings are looked for in decoded text: give `ends` a tokenizer")
