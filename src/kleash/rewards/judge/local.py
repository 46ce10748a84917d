"""A judge in this process: a model whose probabilities of the verdict tokens are the verdict. Nothing is parsed."""

import hashlib
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from kleash.models.verdicts import NextWord, load_next_word
from kleash.rewards.judge.answers import Said
from kleash.rewards.judge.questions import Question
from kleash.rewards.judge.spec import JudgeSpec

TOO_LONG = "too long for the judge's context"
SPECIAL = "special tokens of the judge in the text"


@dataclass(frozen=True)
class Local:
    """A model of transformers and how much goes through it at a time."""

    model: NextWord
    batch_tokens: int
    identity: dict[str, Any]

    @classmethod
    def load(cls, name: str, spec: JudgeSpec, device: str) -> "Local":
        model = load_next_word(name, spec.dtype, device)
        whole = json.dumps(model.fingerprint(), sort_keys=True)
        return cls(model, spec.batch_tokens, {"model": hashlib.sha256(whole.encode()).hexdigest()})

    def ask(self, questions: Sequence[Question]) -> Generator[tuple[int, Said]]:
        rows: dict[int, list[int]] = {}
        for i, question in enumerate(questions):
            ids = self.encode(question)
            if ids is None:
                yield i, Said(failure=SPECIAL)
            elif len(ids) >= self.model.context:
                yield i, Said(failure=TOO_LONG)
            else:
                rows[i] = ids
        numbers = list(rows)
        words = [questions[i].words for i in numbers]
        for batch, found in self.model.shares(list(rows.values()), words, self.batch_tokens):
            for at, shares in zip(batch, found, strict=True):
                yield numbers[at], Said(shares=shares, tokens_in=len(rows[numbers[at]]))

    def encode(self, question: Question) -> list[int] | None:
        """Its tokens, of which the special ones are those of the question itself; None where that cannot be had."""
        wanted = self._special(self.model.encode(question.frame))
        ids = self.model.encode(question.text)
        if self._special(ids) != wanted:
            ids = self.model.encode(question.without(self.model.special.values()).text)
        return ids if self._special(ids) == wanted else None

    def _special(self, ids: list[int]) -> list[int]:
        return [i for i in ids if i in self.model.special]
