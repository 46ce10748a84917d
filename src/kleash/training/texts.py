"""The texts of PPO-ptx: read and tokenised when a run is built, and which ones an update draws."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kleash.algorithms import MixesTexts, Ptx
from kleash.errors import UsageError
from kleash.models.load import Loaded
from kleash.models.prompts import encode
from kleash.tensors import Rollout
from kleash.training.data import Prompts, digest, indices
from kleash.training.prompt_files import read_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Token ids of every text, cut at max_tokens. cut: how many were. fingerprint: of the texts as they are read."""

    ptx: Ptx
    ids: list[list[int]]
    cut: int
    seed: int
    fingerprint: dict[str, Any]

    def of_step(self, step: int, updates: int) -> list[Rollout]:
        """What each update of a step draws: a function of its number in the run, so nothing needs to be remembered."""
        n = self.ptx.per_update
        chosen = [indices(step * updates + i, n, len(self.ids), self.seed) for i in range(updates)]
        return [as_rollout([self.ids[i] for i in index]) for index in chosen]


def load_texts(algorithm: Any, loaded: Loaded, seed: int) -> Texts | None:
    """The texts that an algorithm's `ptx` names, None where there is none.

    Raises:
        UsageError: they cannot be read, one has nothing to predict, or they are fewer than an update draws.
    """
    ptx = algorithm.ptx if isinstance(algorithm, MixesTexts) else None
    if ptx is None:
        return None
    try:
        texts = [_text(i, row, ptx.column) for i, row in enumerate(read_rows(ptx.texts))]
        ids = encode(texts, loaded.tokenizer, context=sys.maxsize, max_new_tokens=0, rows=loaded.policy.rows)
    except UsageError as error:
        raise UsageError(f"algorithm.ptx.texts: {error}") from None
    for i, found in enumerate(ids):
        if len(found) < 2:
            raise UsageError(f"algorithm.ptx.texts: row {i} is one token, so there is nothing to predict; leave it out")
        if min(len(found), ptx.max_tokens) > loaded.context:
            raise UsageError(
                f"algorithm.ptx.texts: row {i} has {len(found)} tokens, and the model's context is {loaded.context}: "
                "set algorithm.ptx.max_tokens to that or less, and texts are cut there"
            )
    if len(ids) < ptx.per_update:
        raise UsageError(
            f"algorithm.ptx.per_update = {ptx.per_update} exceeds the {len(ids)} texts that {ptx.texts} holds"
        )
    return Texts(
        ptx=ptx,
        ids=[found[: ptx.max_tokens] for found in ids],
        cut=sum(len(found) > ptx.max_tokens for found in ids),
        seed=seed,
        fingerprint=digest(Prompts(list(texts), {})),
    )


def _text(number: int, row: Any, column: str) -> str:
    found = row.get(column) if isinstance(row, dict) else row
    if not isinstance(found, str):
        raise UsageError(f"row {number} has no text under {column!r}: {row!r}")
    return found


def as_rollout(ids: Sequence[list[int]]) -> Rollout:
    """Each text as a group of its own: its first token is the prompt, the rest are what is predicted."""
    n, width = len(ids), max(len(one) for one in ids) - 1
    completion, mask = torch.zeros(n, width, dtype=torch.long), torch.zeros(n, width, dtype=torch.bool)
    for i, (_, *rest) in enumerate(ids):
        completion[i, : len(rest)], mask[i, : len(rest)] = torch.tensor(rest), True
    return Rollout(
        prompt_ids=torch.tensor([one[:1] for one in ids]),
        prompt_mask=torch.ones(n, 1, dtype=torch.bool),
        completion_ids=completion,
        mask=mask,
        group=torch.arange(n),
        sampler=torch.zeros(n, width),
        truncated=torch.zeros(n, dtype=torch.bool),
    )
