"""Answers that are there already, as the model would have written them: token ids after a prompt's, end included.

One encoding for supervised rows (an answer a prompt), preference pairs (two) and judged answers (one).
"""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from kleash.errors import UsageError
from kleash.models.prompts import (
    CONTEXT_TOKENS,
    TEMPLATE_ERRORS,
    asked_text,
    bare_ids,
    check_characters,
    encode,
    encode_texts,
    written,
)
from kleash.models.sampling import left_padded
from kleash.models.spec import Chat
from kleash.models.stopping import Ends
from kleash.records import Prompt
from kleash.tensors import Rollout

#: A text, or a list with one message of the assistant's.
Answer = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Token ids of prompts and of each prompt's answers; every prompt has as many.

    ended[i][g]: the answer ends with an end token; it does unless it was cut. apart: answers tokenised by themselves,
    for the tokens of prompt and answer together do not begin with the prompt's.
    """

    prompts: list[list[int]]
    answers: list[list[list[int]]]
    ended: list[list[bool]]
    pad_id: int
    apart: int

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def group_size(self) -> int:
        return len(self.answers[0])

    @property
    def cut(self) -> int:
        """Answers that were cut."""
        return sum(ended.count(False) for ended in self.ended)

    @property
    def digest(self) -> str:
        """sha256 of all ids: the same texts, tokenizer, template and limit give the same."""
        whole = hashlib.sha256()
        for prompt, answers in zip(self.prompts, self.answers, strict=True):
            for ids in (prompt, *answers):
                whole.update(np.asarray([len(ids), *ids], dtype="<i8").tobytes())
        return whole.hexdigest()

    def only(self, index: Sequence[int]) -> "Encoded":
        """These prompts alone, with the same count of those tokenised apart."""
        prompts, answers, ended = ([side[i] for i in index] for side in (self.prompts, self.answers, self.ended))
        return replace(self, prompts=prompts, answers=answers, ended=ended)  # pyright: ignore[reportArgumentType]

    def of(self, prompts: list[list[int]], answers: list[list[list[int]]]) -> "Encoded":
        """Other prompts with answers of these, ended or not."""
        return replace(self, prompts=prompts, answers=answers, ended=[[True] * len(group) for group in answers])

    def rollout(self, index: Sequence[int], device: torch.device | str = "cpu") -> Rollout:
        """The prompts of `index`, each with its answers, as whole groups; every token of an answer counts."""
        prompt_ids, prompt_mask = left_padded([self.prompts[i] for i in index], self.pad_id, device)
        rows = [ids for i in index for ids in self.answers[i]]
        width = max(map(len, rows))
        ids = torch.tensor([row + [self.pad_id] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return Rollout(
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            completion_ids=ids,
            mask=torch.arange(width, device=device) < lengths[:, None],
            group=torch.arange(len(index), device=device).repeat_interleave(self.group_size),
            sampler=torch.zeros(ids.shape, device=device),
            truncated=torch.tensor([not done for i in index for done in self.ended[i]], device=device),
        )


def encode_answers(
    prompts: Sequence[Prompt],
    answers: Sequence[Sequence[Answer]],
    tokenizer: Any,
    ends: Ends,
    *,
    context: int,
    chat: Chat | None = None,
    rows: int = sys.maxsize,
    max_tokens: int | None = None,
) -> Encoded:
    """Token ids of answers as they go on from their prompts.

    A text is tokenised together with its prompt, as it would have been read; an answer to messages goes through the
    chat template, up to the end token that closes its turn. An end token follows where the template writes none: with
    each answer the model learns where it ends.

    Args:
        answers: answers[i], as many for each prompt, belong to prompts[i].
        rows: of the model's embedding, as for `encode`.
        max_tokens: of prompt and answer together, at which answers are cut; None: the context, and nothing is cut.

    Raises:
        UsageError: what `encode` refuses in a prompt; an answer that is empty, that the template changes, or too long.
    """
    chat, limit = chat or Chat(), min(context, max_tokens or sys.maxsize)
    ids = encode(list(prompts), tokenizer, context=sys.maxsize, max_new_tokens=0, chat=chat, rows=rows)
    flat = [(i, answer) for i, group in enumerate(answers) for answer in group]
    wholes = [_whole(i, prompts[i], answer, tokenizer, chat) for i, answer in flat]
    found, apart = _after([ids[i] for i, _ in flat], wholes, tokenizer)
    done: list[list[int]] = []
    for (i, _), whole, one in zip(flat, wholes, found, strict=True):
        full = _ended(one, whole, ends, tokenizer)
        _check_room(i, len(ids[i]), len(full), limit, cutting=max_tokens is not None)
        if (largest := max(full)) >= rows:
            raise UsageError(
                f"the answer to prompt {i} has the token {tokenizer.convert_ids_to_tokens(largest)!r}, number "
                f"{largest} of the tokenizer, and the model has embeddings for {rows} tokens only: leave it out"
            )
        done.append(full)
    kept = [one[: limit - len(ids[i])] for (i, _), one in zip(flat, done, strict=True)]
    ended = [len(short) == len(full) for short, full in zip(kept, done, strict=True)]
    size = len(answers[0])
    return Encoded(
        prompts=ids,
        answers=[kept[i : i + size] for i in range(0, len(kept), size)],
        ended=[ended[i : i + size] for i in range(0, len(ended), size)],
        pad_id=ends.pad_id,
        apart=apart,
    )


class _Whole(NamedTuple):
    """Prompt and answer as one text, and what of it comes after the prompt. messages: it is a template's."""

    text: str
    rest: str
    content: str
    messages: bool


def _whole(index: int, prompt: Prompt, answer: Answer, tokenizer: Any, chat: Chat) -> _Whole:
    message = {"role": "assistant", "content": answer} if isinstance(answer, str) else _only(index, answer)
    content = message["content"]
    if not content.strip():
        raise UsageError(f"the answer to prompt {index} is empty; give it some text, or leave it out")
    check_characters(f"the answer to prompt {index}", content)
    if isinstance(prompt, str):
        if not isinstance(answer, str):
            raise UsageError(f"prompt {index} is text and its answer a message; give both as text or both as messages")
        return _Whole(prompt + answer, answer, answer, messages=False)
    before = asked_text(index, prompt, tokenizer, chat)
    if prompt[-1]["role"] == "assistant":  # the answer goes on with it
        turns = [*prompt[:-1], {**prompt[-1], "content": prompt[-1]["content"] + content}]
    else:
        turns = [*prompt, message]
    try:
        full = tokenizer.apply_chat_template(turns, tokenize=False, **chat.variables)
    except TEMPLATE_ERRORS as error:
        raise UsageError(f"the tokenizer's chat template refuses the answer to prompt {index}: {error}") from error
    if content.strip() not in full:
        raise UsageError(
            f"the tokenizer's chat template changes the answer to prompt {index}, so the model would learn another "
            "one; leave out of it what the template cuts (a thought, as a rule)"
        )
    # A template may open an answer in another way than it writes a finished one. White space parts turns.
    begins = len(before) if full.startswith(before) else full.rindex(content.strip())
    rest = full[begins:].rstrip()
    return _Whole(before + rest, rest, content, messages=True)


def _only(index: int, answer: Any) -> dict[str, Any]:
    message = answer[0] if isinstance(answer, list) and len(answer) == 1 else None
    if (
        not isinstance(message, dict)
        or message.get("role") != "assistant"
        or not isinstance(message.get("content"), str)
    ):
        raise UsageError(
            f"the answer to prompt {index} must be text or one message of the assistant's, not {answer!r:.80}"
        )
    return message


def _after(prompts: list[list[int]], wholes: list[_Whole], tokenizer: Any) -> tuple[list[list[int]], int]:
    """The ids that come after each prompt's, and how many had to be tokenised apart from it."""
    texts = iter(encode_texts([whole.text for whole in wholes if not whole.messages], tokenizer))
    templated = [whole.text for whole in wholes if whole.messages]
    chats = iter(bare_ids(templated, tokenizer) if templated else [])
    found: list[list[int]] = []
    apart = 0
    for prompt, whole in zip(prompts, wholes, strict=True):
        ids = next(chats if whole.messages else texts)
        if ids[: len(prompt)] == prompt and len(ids) > len(prompt):
            found.append(ids[len(prompt) :])
        else:
            apart += 1
            found.append(_alone(prompt, whole.rest, tokenizer))
    return found, apart


def _alone(prompt: list[int], rest: str, tokenizer: Any) -> list[int]:
    """Tokens of a text after others, without the space that some tokenizers put before any text."""
    ids = bare_ids([rest], tokenizer)[0]
    tail = prompt[-CONTEXT_TOKENS:]
    before, after = written([tail, tail + ids[1:]], tokenizer)
    return ids[1:] if len(ids) > 1 and after == before + rest else ids


def _ended(ids: list[int], whole: _Whole, ends: Ends, tokenizer: Any) -> list[int]:
    """Up to the end token that closes the answer, or with one after it."""
    places = [place for place, token in enumerate(ids) if token in ends.eos_ids]
    if not whole.messages:
        return ids if places[-1:] == [len(ids) - 1] else [*ids, ends.eos_ids[0]]
    names = [tokenizer.convert_ids_to_tokens(token) for token in ends.eos_ids]
    own = sum(whole.content.count(name) for name in names)  # end tokens written in the answer itself
    return ids[: places[own] + 1] if len(places) > own else [*ids, ends.eos_ids[0]]


def _check_room(index: int, prompt: int, answer: int, limit: int, *, cutting: bool) -> None:
    if prompt >= limit:
        raise UsageError(
            f"prompt {index} has {prompt} tokens, and {limit} is the limit of prompt and answer together: no room is "
            "left for its answer; shorten it, or leave it out"
        )
    if not cutting and prompt + answer > limit:
        raise UsageError(
            f"prompt {index} and its answer have {prompt} + {answer} tokens, and the model's context is {limit}: "
            f"shorten them, or set data.max_tokens = {limit} to have answers cut there"
        )
