"""One completion, token by token as it is drawn, with its exact KL to another model that reads along."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kleash.models.draw import draw
from kleash.models.policy import Policy
from kleash.models.prompts import CONTEXT_TOKENS, written
from kleash.models.sampling import Sampling, Stream, left_padded, next_logprobs, widened
from kleash.models.stopping import Ends, stopped
from kleash.tensors import Head

#: A model as itself while the context lasts, such as `Reference.running`.
Running = Callable[[], AbstractContextManager[Policy]]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One token. text: the characters that it completes; kl: KL(speaker‖reader) at its position, in nats.

    logprob: of the token under the speaker, at the temperature and before top-k or top-p; nats.
    """

    token: int
    text: str
    logprob: float
    kl: float | None


def speak(
    speaker: Running,
    prompt: list[int],
    settings: Sampling,
    ends: Ends,
    noise: Int[Tensor, " T"],
    reader: Running | None = None,
) -> Iterator[Spoken]:
    """The tokens of one completion, end token included. The same key gives the same tokens as `sample`.

    Args:
        prompt: token ids.
        noise: whole numbers below 2⁴⁴, one a position (`keyed_noise`); T = settings.max_new_tokens.
        reader: the model that the KL is taken to; it is fed the same tokens. None: no KL.

    Raises:
        NotFiniteError: logits that are not finite.
    """
    said = _Text(prompt, ends.tokenizer)
    own = _Side.begin(speaker, prompt, ends, settings.max_new_tokens)
    other = None if reader is None else _Side.begin(reader, prompt, ends, settings.max_new_tokens)
    whole = replace(settings, top_k=0, top_p=1.0)
    for t in range(settings.max_new_tokens):
        drawn_from = own.next(settings, ends.eos_ids if t < settings.min_new_tokens else ())
        token = draw(drawn_from, noise[t : t + 1].to(drawn_from.device))
        logprobs = own.next(whole)
        kl = None if other is None else _kl(logprobs, other.next(whole))
        number = int(token)
        yield Spoken(number, said.add(number), float(logprobs[0, number]), kl)
        ended = number in ends.eos_ids
        if settings.stop:
            ended |= bool(stopped(torch.tensor([said.ids]), settings.stop, ends.tokenizer))
        if ended or t == settings.max_new_tokens - 1:
            return
        own.read(token)
        if other is not None:
            other.read(token)


@dataclass(slots=True)
class _Side:
    """A model that reads a completion token by token."""

    running: Running
    head: Head
    hidden: Float[Tensor, "1 H"]
    stream: Stream

    @classmethod
    @torch.no_grad()
    def begin(cls, running: Running, prompt: list[int], ends: Ends, length: int) -> "_Side":
        with running() as policy, policy.evaluating():
            head = widened(policy.head())
            ids, mask = left_padded([prompt], ends.pad_id, head.weight.device)
            hidden, stream = Stream.begin(policy, ids, mask, 1, length)
        return cls(running, head, hidden, stream)

    @torch.no_grad()
    def next(self, settings: Sampling, forbidden: tuple[int, ...] = ()) -> Float[Tensor, "1 V"]:
        return next_logprobs(self.hidden, self.head, settings, forbidden)

    @torch.no_grad()
    def read(self, token: Int[Tensor, " 1"]) -> None:
        with self.running() as policy, policy.evaluating():
            self.hidden = self.stream.read(token)


def _kl(p: Float[Tensor, "1 V"], q: Float[Tensor, "1 V"]) -> float:
    """In float64: where the two agree, fp32's rounding would be most of it."""
    wide = p.double().log_softmax(-1)
    return float((wide.exp() * (wide - q.double().log_softmax(-1))).sum())


class _Text:
    """The completion's text as it grows: whole characters only, as they go on from the prompt."""

    def __init__(self, prompt: list[int], tokenizer: Any) -> None:
        self.ids: list[int] = []
        self._before, self._tokenizer = prompt[-CONTEXT_TOKENS:], tokenizer
        self._start = len(written([self._before], tokenizer)[0])
        self._shown = ""

    def add(self, token: int) -> str:
        self.ids.append(token)
        text = written([self._before + self.ids], self._tokenizer)[0][self._start :]
        if text.endswith("\ufffd"):  # a character whose last bytes are still to come
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new
