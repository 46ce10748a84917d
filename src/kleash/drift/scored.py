"""From token ids to a document: each scored token with its text and class, as far as both models can read."""

import re
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from kleash.drift.reading import Reader, Reading
from kleash.drift.table import CLASSES, Document
from kleash.models.prompts import CONTEXT_TOKENS
from kleash.models.token_classes import FORMAT

_FORMAT = re.compile(FORMAT)


@runtime_checkable
class Named(Protocol):
    """What of a text its document keeps."""

    @property
    def id(self) -> str: ...

    @property
    def domain(self) -> str | None: ...

    @property
    def shown(self) -> str: ...


def document_of(
    text: Named,
    prompts: tuple[tuple[int, ...], tuple[int, ...]],
    ids: tuple[int, ...],
    reading: Reading,
    *,
    ended: bool = True,
) -> Document:
    """The scored tokens with their texts and classes, cut where one of the models can read no further.

    That is at the end of its context, or at a token that only the other one has.
    """
    reader = reading.smaller
    room = max(0, reading.context - max(map(len, prompts)))
    kept = ids[: next((n for n, i in enumerate(ids[:room]) if i >= reading.shared), room)]
    pieces = pieces_of(kept, prompts[0], reader.tokenizer)
    return Document(
        id=text.id,
        domain=text.domain,
        prompt_text=text.shown,
        text="".join(pieces),
        ids=kept,
        pieces=pieces,
        classes=tuple(_class(i, piece, reader) for i, piece in zip(kept, pieces, strict=True)),
        prompt_base=prompts[0],
        prompt_tuned=prompts[1],
        cut=len(ids) - len(kept),
        ended=ended and len(ids) == len(kept),
    )


def pieces_of(ids: Sequence[int], before: Sequence[int], tokenizer: Any) -> tuple[str, ...]:
    """The text that each token adds to those before it; of a character over several tokens the last has it all."""
    window = list(before[-CONTEXT_TOKENS:])
    so_far = _decoded(window, tokenizer)
    found: list[str] = []
    for i in ids:
        window.append(i)
        whole = _decoded(window, tokenizer)
        if whole.endswith("\ufffd") and len(window) < 2 * CONTEXT_TOKENS + 8:
            found.append("")
            continue
        found.append(whole[len(so_far) :] if whole.startswith(so_far) else _decoded([i], tokenizer))
        window = window[-CONTEXT_TOKENS:]
        so_far = _decoded(window, tokenizer)
    if found and found[-1] == "" and len(window) > len(before[-CONTEXT_TOKENS:]):
        found[-1] = _decoded(window, tokenizer)[len(so_far) :]  # it ends inside a character
    return tuple(found)


def _decoded(ids: list[int], tokenizer: Any) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _class(token: int, piece: str, reader: Reader) -> int:
    if token in reader.ends.eos_ids:
        return CLASSES.index("eos")
    if token in reader.tokenizer.added_tokens_decoder or token in reader.tokenizer.all_special_ids:
        return CLASSES.index("template")
    form = piece and "\ufffd" not in piece and _FORMAT.fullmatch(piece) is not None
    return CLASSES.index("format" if form else "content")
