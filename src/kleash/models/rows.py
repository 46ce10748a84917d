"""Whole texts as rows to learn from: token ids, and which of them count.

A row's first token is the rollout's prompt and all others its completion, of which the question's do not count: so rows
of like length go together with little padding, wherever their answers begin.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from kleash.errors import UsageError
from kleash.models.answers import encode_answers
from kleash.models.prompts import encode
from kleash.models.spec import Chat
from kleash.models.stopping import Ends
from kleash.tensors import Rollout


class Row(NamedTuple):
    """counts: what is learned; never the first token, which nothing predicts."""

    ids: list[int]
    counts: list[bool]

    def cut(self, most: int) -> "Row":
        return Row(self.ids[:most], self.counts[:most])


class Reader(NamedTuple):
    """What turns text into a model's tokens. rows: of its embedding."""

    tokenizer: Any
    ends: Ends
    context: int
    rows: int
    chat: Chat


def plain_rows(texts: Sequence[str], reader: Reader) -> list[Row]:
    """Texts of which everything counts, and an end token after each.

    Raises:
        UsageError: what `encode` refuses in a text.
    """
    found = encode(list(texts), reader.tokenizer, context=2**62, max_new_tokens=0, rows=reader.rows)
    end = reader.ends.eos_ids
    ids = [one if one[-1] in end else [*one, end[0]] for one in found]
    return [Row(one, [False] + [True] * (len(one) - 1)) for one in ids]


def answered_rows(prompts: Sequence[Any], answers: Sequence[Any], reader: Reader) -> list[Row]:
    """A prompt (text or messages) and its answer, which is what counts.

    Raises:
        UsageError: what `encode_answers` refuses.
    """
    encoded = encode_answers(
        prompts,
        [(answer,) for answer in answers],
        reader.tokenizer,
        reader.ends,
        context=2**62,  # rows that are too long are the caller's to refuse or to cut
        chat=reader.chat,
        rows=reader.rows,
    )
    return [
        Row(prompt + answer, [False] * len(prompt) + [True] * len(answer))
        for prompt, (answer,) in zip(encoded.prompts, encoded.answers, strict=True)
    ]


def conversation_rows(conversations: Sequence[list[dict[str, Any]]], reader: Reader) -> list[Row]:
    """Whole conversations: each of the assistant's turns counts, as an answer to all that stands before it.

    A conversation is one row where each turn's question goes on from the tokens before it. Where the template shows an
    earlier turn otherwise once it is past (thoughts that are cut), what it shows is another text: a row of its own.

    Raises:
        UsageError: no turn of the assistant's, one without a question before it, or what `encode_answers` refuses.
    """
    turns: list[tuple[int, Row]] = []
    prompts: list[Any] = []
    answers: list[str] = []
    owner: list[int] = []
    for number, messages in enumerate(conversations):
        said = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
        if not said or said[0] == 0:
            raise UsageError(
                f"row {number}: a conversation needs an assistant's message after a question; there is "
                + ("none of the assistant's" if not said else "none before it")
            )
        prompts += [messages[:place] for place in said]
        answers += [messages[place]["content"] for place in said]
        owner += [number] * len(said)
    turns = list(zip(owner, answered_rows(prompts, answers, reader), strict=True))
    rows: list[tuple[int, Row]] = []
    for number, row in turns:
        before = rows[-1] if rows else None
        if before and before[0] == number and row.ids[: len(before[1].ids)] == before[1].ids:
            counts = before[1].counts + row.counts[len(before[1].counts) :]
            rows[-1] = (number, Row(row.ids, counts))
        else:
            rows.append((number, row))
    return [row for _, row in rows]


def rollout_of(rows: Sequence[Row], pad_id: int, device: torch.device | str) -> Rollout:
    """Rows as a rollout of as many groups; counted tokens are in its mask, which may have holes."""
    width = max(len(row.ids) for row in rows) - 1
    ids = torch.full((len(rows), width), pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids) - 1] = torch.tensor(row.ids[1:])
        mask[i, : len(row.ids) - 1] = torch.tensor(row.counts[1:])
    return Rollout(
        prompt_ids=torch.tensor([row.ids[:1] for row in rows], device=device),
        prompt_mask=torch.ones(len(rows), 1, dtype=torch.bool, device=device),
        completion_ids=ids.to(device),
        mask=mask.to(device),
        group=torch.arange(len(rows), device=device),
        sampler=torch.zeros(len(rows), width, device=device),
        truncated=torch.zeros(len(rows), dtype=torch.bool, device=device),
    )


def even_spans(lengths: Sequence[int], most: int | None, waste: float) -> list[tuple[int, int]]:
    """Consecutive (first, last) of rows in order of length: at most `most` of them, at most `waste` of it padding."""
    spans: list[tuple[int, int]] = []
    first = 0
    for last in range(1, len(lengths) + 1):
        if last == len(lengths) or last - first == most or _padding(lengths[first : last + 1]) > waste:
            spans.append((first, last))
            first = last
    return spans


def _padding(lengths: Sequence[int]) -> float:
    return 1 - sum(lengths) / (max(lengths) * len(lengths))
