"""The measurement: both models over the same tokens, and every token's divergences from their hidden states."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kleash.drift.cache import StateCache
from kleash.drift.sources import Model, Pair
from kleash.drift.table import DIVERGENCES, Document, TokenTable, index_rows
from kleash.errors import RunError, UsageError
from kleash.kl.audit import Audited, audit
from kleash.models.exhausted import is_out_of_memory, release, said_of
from kleash.models.rows import Row, rollout_of
from kleash.tensors import Head

#: Tokens of a batch, padding included.
BATCH_TOKENS = {"cpu": 2048, "cuda": 16384, "mps": 4096}
#: Of a batch at most this share may be padding.
WASTE = 0.15


def _nothing(*_: Any) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Who is told meanwhile.

    estimate: once, after the first batch: the seconds that all of it will take. progress: tokens done, and of how many.
    """

    estimate: Callable[[float], None] = _nothing
    progress: Callable[[int, int], None] = _nothing


class Batch(NamedTuple):
    """Documents that go through together, by their numbers."""

    numbers: list[int]
    documents: list[Document]

    @property
    def scored(self) -> int:
        return sum(len(document.ids) for document in self.documents)

    def halves(self) -> list["Batch"]:
        middle = len(self.numbers) // 2
        cuts = (slice(0, middle), slice(middle, None))
        return [Batch(self.numbers[cut], self.documents[cut]) for cut in cuts]

    def prompts(self, side: str) -> list[tuple[int, ...]]:
        return [getattr(document, f"prompt_{side}") for document in self.documents]


@torch.no_grad()
def measure(
    pair: Pair,
    documents: Sequence[Document],
    *,
    reach: float = 0.0,
    cache: StateCache | None = None,
    batch_tokens: int | None = None,
    hooks: Hooks | None = None,
) -> TokenTable:
    """Exact divergences of every scored token, over the vocabulary that both models share.

    Where memory runs out, batches are halved from there on. Ctrl-C ends it early: what is measured so far is returned
    with `partial` set, and raised again if that is nothing.

    Args:
        documents: of `prepared` or `samples`.
        reach: the largest KL of a token that rounding alone made (`measure_floor`): smaller flips are not sure.
        cache: where the base's hidden states are kept and looked for; None: nowhere.

    Raises:
        UsageError: the models share no tokens, or there is nothing to measure.
        RunError: memory does not suffice for one document.
    """
    if pair.compared.why_not is not None:
        raise UsageError(pair.compared.why_not)
    if not documents:
        raise UsageError("there is nothing to measure: no documents")
    hooks = hooks or Hooks()
    queue = deque(batches(documents, batch_tokens or BATCH_TOKENS[pair.base.opened.policy.device.type]))
    total, done, began = sum(len(document.ids) for document in documents), 0, time.perf_counter()
    found: dict[int, list[Tensor]] = {}
    halved, partial = 0, None
    try:
        while queue:
            batch = queue.popleft()
            try:
                columns = _measured(pair, batch, cache)
            except (RuntimeError, MemoryError) as error:
                queue = _halved(error, batch, queue)
                halved += 1
                continue
            found |= _by_document(batch, columns)
            if done == 0:
                hooks.estimate((time.perf_counter() - began) * total / batch.scored)
            done += batch.scored
            hooks.progress(done, total)
    except KeyboardInterrupt:
        if not found:
            raise
        partial = f"interrupted: {len(found)} of {len(documents)} documents measured"
    return _table(documents, found, reach, halved=halved, partial=partial)


def batches(documents: Sequence[Document], most: int) -> list[Batch]:
    """Documents of like length together: at most `most` tokens with the padding, at most WASTE of it padding."""
    lengths = [max(len(d.prompt_base), len(d.prompt_tuned)) + len(d.ids) for d in documents]
    order = sorted(range(len(documents)), key=lambda n: lengths[n])
    found: list[list[int]] = []
    real = 0
    for n in order:
        room = lengths[n] * (len(found[-1]) + 1) if found else 0
        if found and room <= most and room - real - lengths[n] <= WASTE * room:
            found[-1].append(n)
            real += lengths[n]
        else:
            found.append([n])
            real = lengths[n]
    return [Batch(numbers, [documents[n] for n in numbers]) for numbers in found]


def _halved(error: Exception, batch: Batch, queue: deque[Batch]) -> deque[Batch]:
    """What is left to do after memory ran out in `batch`, in batches of half its size."""
    if not is_out_of_memory(error):
        raise error
    release()
    if len(batch.numbers) == 1:
        document = batch.documents[0]
        raise RunError(
            f"memory ran out ({said_of(error)}) on document {document.id} alone, of "
            f"{len(document.prompt_base) + len(document.ids)} tokens; leave it out, or take a lower precision "
            "(@bfloat16)"
        ) from None
    most = len(batch.numbers) // 2
    rest: list[Batch] = [batch, *queue]
    while any(len(one.numbers) > max(1, most) for one in rest):
        rest = [part for one in rest for part in (one.halves() if len(one.numbers) > max(1, most) else [one])]
    return deque(rest)


def _measured(pair: Pair, batch: Batch, cache: StateCache | None) -> Audited:
    hidden, head = base_states(pair.base, batch, cache)
    other, tuned_head = states(pair.tuned, batch, "tuned")
    targets = torch.tensor([i for document in batch.documents for i in document.ids], device=hidden.device)
    return audit(hidden, head, other.to(hidden.device), tuned_head, targets)


def base_states(model: Model, batch: Batch, cache: StateCache | None) -> tuple[Float[Tensor, "n H"], Head]:
    """The base's hidden states at the scored positions: from the cache, or computed and put there; and its head."""
    if cache is None:
        return states(model, batch, "base")
    policy = model.opened.policy
    rows = [[*prompt, *d.ids] for prompt, d in zip(batch.prompts("base"), batch.documents, strict=True)]
    file = cache.file(model.record.fingerprint, policy.device.type, rows, batch.scored)
    kept = cache.read(file)
    if kept is not None:
        with model.running() as running:
            return kept.to(policy.device), running.head()
    hidden, head = states(model, batch, "base")
    cache.write(file, hidden)
    return hidden, head


@torch.no_grad()
def states(model: Model, batch: Batch, side: str) -> tuple[Float[Tensor, "n H"], Head]:
    """Final hidden states that predict each scored token of the batch, document after document; and the head."""
    rows = [
        Row([*prompt, *document.ids], [False] * len(prompt) + [True] * len(document.ids))
        for prompt, document in zip(batch.prompts(side), batch.documents, strict=True)
    ]
    with model.running() as policy:
        rollout = rollout_of(rows, model.opened.loaded.ends.pad_id, policy.device)
        return policy.hidden(rollout, "plain")[rollout.mask], policy.head()


def _by_document(batch: Batch, columns: Audited) -> dict[int, list[Tensor]]:
    lengths = [len(document.ids) for document in batch.documents]
    parts = [getattr(columns, name).split(lengths) for name in Audited.__dataclass_fields__]
    return {number: [part[i] for part in parts] for i, number in enumerate(batch.numbers)}


def _table(
    documents: Sequence[Document], found: dict[int, list[Tensor]], reach: float, *, halved: int, partial: str | None
) -> TokenTable:
    """The columns of all measured documents in their order; what is infinite or undefined becomes NaN."""
    numbers = sorted(found)
    kept = [documents[n] for n in numbers]
    number, position, token, classes = index_rows(kept)
    joined = [torch.cat(parts) for parts in zip(*(found[n] for n in numbers), strict=True)]
    seen = {name: column.numpy() for name, column in zip(Audited.__dataclass_fields__, joined, strict=True)}
    for name in (*DIVERGENCES, "logp_base", "logp_tuned"):
        seen[name] = np.where(np.isfinite(seen[name]), seen[name], np.nan)
    radius = seen.pop("flip_radius")
    seen.pop("lost_mass")
    return TokenTable(
        kind="exact",
        documents=tuple(kept),
        document=number,
        position=position,
        token=token,
        token_class=classes,
        sure_flip=~seen["same_top1"] & (radius > reach),
        reach=reach,
        halved=halved,
        partial=partial,
        **seen,
    )
