"""What both models are read on: the user's texts and prompts, or the built-in set; from files to scored tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.drift.builtin import builtin_set
from kleash.drift.reading import Reader, Reading
from kleash.drift.scored import document_of
from kleash.drift.sources import Pair
from kleash.drift.table import Document
from kleash.errors import UsageError
from kleash.models.answers import encode_answers
from kleash.models.prompts import encode
from kleash.models.spec import Chat
from kleash.training.prompt_files import read_rows

#: Where a row keeps the answer to its prompt, the first that is there.
ANSWERS = ("completion", "answer", "response", "reference", "chosen")
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text before it is tokens.

    prompt: text, or messages as (role, content); "" for plain text, of which all but the first token is scored.
    answer: what is scored; "" for a prompt that has none yet and must be sampled.
    """

    id: str
    domain: str | None
    prompt: str | tuple[tuple[str, str], ...]
    answer: str

    @property
    def chat(self) -> str | list[dict[str, str]]:
        """The prompt as tokenizers take it."""
        if isinstance(self.prompt, str):
            return self.prompt
        return [{"role": role, "content": content} for role, content in self.prompt]

    @property
    def shown(self) -> str:
        """The prompt as a person reads it: of one message its words, of several each with its role."""
        if isinstance(self.prompt, str):
            return self.prompt
        if len(self.prompt) == 1:
            return self.prompt[0][1]
        return "\n".join(f"{role}: {content}" for role, content in self.prompt)


def builtin_texts() -> list[Text]:
    """The built-in off-task set with its reference answers."""
    return [Text(id=row.id, domain=row.domain, prompt=row.messages, answer=row.reference) for row in builtin_set()]


def read_texts(source: str | Path) -> list[Text]:
    """Texts or prompts of the user's own.

    Args:
        source: a .txt file, of which each paragraph is a text; or whatever `read_rows` takes, with rows that have
            "text"; or "prompt" (text or messages) with or without an answer under one of ANSWERS; or "messages", of
            which a last one of the assistant's is the answer. "domain" and "id" are kept.

    Raises:
        UsageError: nothing to read, or a row with none of these.
    """
    path = Path(source)
    if path.suffix == ".txt":
        try:
            whole = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the text file {path} cannot be read: {error}") from None
        rows: list[Any] = [{"text": part.strip()} for part in re.split(r"\n\s*\n", whole) if part.strip()]
    else:
        rows = read_rows(source)
    if not rows:
        raise UsageError(f"{source} is empty; give it texts, a paragraph each, or rows with a prompt")
    texts = [_text(number, row, str(source)) for number, row in enumerate(rows)]
    ids = [text.id for text in texts]
    if len(set(ids)) < len(ids):
        raise UsageError(f"{source}: an id stands twice; each row needs one of its own, or none")
    return texts


def _text(number: int, row: Any, source: str) -> Text:
    if not isinstance(row, dict):
        raise UsageError(f"{source}, row {number}: a row must be an object, not {row!r:.60}")
    domain = row.get("domain")
    given: dict[str, Any] = {"id": str(row.get("id", f"{Path(source).stem}-{number}"))}
    given["domain"] = None if domain is None else str(domain)
    if isinstance(row.get("text"), str) and row["text"].strip():
        return Text(prompt="", answer=row["text"], **given)
    prompt: Any = row.get("prompt", row.get("messages"))
    answer: Any = next((row[name] for name in ANSWERS if row.get(name)), "")
    if isinstance(prompt, list):
        turns = tuple((str(m.get("role")), m.get("content")) for m in prompt if isinstance(m, dict))
        if not answer and len(turns) > 1 and turns[-1][0] == "assistant":
            turns, answer = turns[:-1], turns[-1][1]
        prompt = turns if turns and all(isinstance(content, str) for _, content in turns) else None
    if isinstance(answer, list) and len(answer) == 1 and isinstance(answer[0], dict):
        answer = answer[0].get("content")
    if not prompt or not isinstance(answer, str) or (isinstance(prompt, str) and not prompt.strip()):
        raise UsageError(
            f'{source}, row {number} has neither "text", nor "prompt" (text or messages) with an answer or without, '
            f"nor messages: {row!r:.80}"
        )
    return Text(prompt=prompt, answer=answer, **given)


def prepared(texts: Sequence[Text], pair: Pair | Reading, tokens: int | None = None) -> list[Document]:
    """Texts as scored tokens, whole documents, one of each domain in turn, until `tokens` are reached (one at least).

    Texts without an answer are left out: they have nothing to score. Texts longer than the context are cut.

    Raises:
        UsageError: a text that cannot be tokenised, or nothing is left to score.
    """
    reading = pair if isinstance(pair, Reading) else pair.reading
    answered = [text for text in texts if text.answer.strip()]
    if not answered:
        raise UsageError("none of these prompts has an answer to score; give answers, or have them sampled")
    spread = in_turn(answered)
    found: list[Document] = []
    total = 0
    for start in range(0, len(spread), 32):  # tokenised a few at a time: with a cap most are never reached
        for document in encode_documents(spread[start : start + 32], reading):
            if found and tokens is not None and total + len(document.ids) > tokens:
                return found
            if document.ids:
                found.append(document)
                total += len(document.ids)
    if not found:
        raise UsageError("nothing is left to score: each of these texts is one token, or its prompt fills the context")
    return found


def in_turn(texts: Sequence[Text]) -> list[Text]:
    """The first text of each domain, then the second of each, …"""
    seen: dict[str | None, int] = {}
    turns = []
    for place, text in enumerate(texts):
        turns.append((seen.get(text.domain, 0), place, text))
        seen[text.domain] = seen.get(text.domain, 0) + 1
    return [text for _, _, text in sorted(turns, key=lambda turn: turn[:2])]


def encode_documents(texts: Sequence[Text], reading: Reading) -> list[Document]:
    """Tokens of each text as both models read them, cut at the context."""
    plain = [text for text in texts if not text.prompt]
    asked = [text for text in texts if text.prompt]
    by_id = {document.id: document for document in (*_plain(plain, reading), *_asked(asked, reading))}
    return [by_id[text.id] for text in texts]


def _plain(texts: Sequence[Text], reading: Reading) -> list[Document]:
    """Texts without a prompt, in the tokens of the side with fewer of them: both can read those."""
    if not texts:
        return []
    reader = reading.smaller
    rows = encode(
        [text.answer for text in texts], reader.tokenizer, context=_NO_LIMIT, max_new_tokens=0, rows=reading.rows
    )
    return [
        document_of(text, (tuple(ids[:1]), tuple(ids[:1])), tuple(ids[1:]), reading)
        for text, ids in zip(texts, rows, strict=True)
    ]


def _asked(texts: Sequence[Text], reading: Reading) -> list[Document]:
    """Prompts with answers: by the template of one side, or of each."""
    if not texts:
        return []
    base, tuned = reading.readers
    if base is tuned:
        before = after = encoded(texts, base, reading.rows)
    else:
        before, after = encoded(texts, base, base.rows), encoded(texts, tuned, tuned.rows)
    ends = [side.ends.eos_ids for side in (reading.base, reading.tuned)]
    found = []
    for text, (p, a), (q, b) in zip(texts, before, after, strict=True):
        if a[-1] != b[-1] and a[-1] in ends[0] and b[-1] in ends[1]:
            a, b = a[:-1], b[:-1]  # each ends a turn in its own way
        common = _common_tail(a, b)
        scored, lead, other = a[len(a) - common :], a[: len(a) - common], b[: len(b) - common]
        found.append(document_of(text, (tuple(p + lead), tuple(q + other)), tuple(scored), reading))
    return found


def encoded(texts: Sequence[Text], reader: Reader, rows: int) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of each text; a reader without a chat template gets the messages' words as plain text."""
    if not texts:
        return []
    prompts: list[Any] = [_prompt(text, reader) for text in texts]
    encoded = encode_answers(
        prompts,
        [(text.answer,) for text in texts],
        reader.tokenizer,
        reader.ends,
        context=_NO_LIMIT,
        chat=Chat(),
        rows=rows,
    )
    return [(prompt, answer) for prompt, (answer,) in zip(encoded.prompts, encoded.answers, strict=True)]


def _prompt(text: Text, reader: Reader) -> Any:
    if isinstance(text.prompt, str) or reader.tokenizer.chat_template:
        return text.chat
    return "\n\n".join(content for _, content in text.prompt) + "\n\n"


def prompt_ids(texts: Sequence[Text], reading: Reading) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each prompt as the base and as the tuned model read it, up to where an answer begins.

    Raises:
        UsageError: a prompt that cannot be tokenised.
    """
    base, tuned = reading.readers
    rows = (reading.rows, reading.rows) if base is tuned else (base.rows, tuned.rows)
    sides = [
        encode(
            [_prompt(text, reader) for text in texts],
            reader.tokenizer,
            context=_NO_LIMIT,
            max_new_tokens=0,
            chat=Chat(),
            rows=limit,
        )
        for reader, limit in zip((base, tuned), rows, strict=True)
    ]
    return [(tuple(p), tuple(q)) for p, q in zip(*sides, strict=True)]


def _common_tail(a: list[int], b: list[int]) -> int:
    """How many tokens at the end are the same."""
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n
