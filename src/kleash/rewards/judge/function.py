"""A judge that is a Python function of one's own, behind the same interface: "judge:./judge.py:strict"."""

import math
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.rewards.judge.answers import Said
from kleash.rewards.judge.questions import Question
from kleash.rewards.load import find
from kleash.rewards.where import where


@dataclass(frozen=True)
class Function:
    """fn(question: str, judged: list[str], words: list[str]) -> {word: probability}, or None where it cannot judge.

    judged: what is fenced off in the question: the prompt, then the answer or the two answers in the order shown.
    """

    name: str
    fn: Callable[..., Any]

    @classmethod
    def load(cls, name: str) -> "Function":
        """Runs the code that is there."""
        fn = find(name, "judge")
        if not callable(fn):
            raise UsageError(f"judge {name!r} is a {type(fn).__name__}, not a function")
        return cls(name, fn)

    @property
    def identity(self) -> dict[str, Any]:
        return {"function": self.name}

    def ask(self, questions: Sequence[Question]) -> Generator[tuple[int, Said]]:
        for i, question in enumerate(questions):
            judged = [piece.text for piece in question.pieces if piece.judged]
            found = self._called(question, judged)
            yield i, Said(failure="the function gave None") if found is None else Said(shares=self._checked(found))

    def _called(self, question: Question, judged: list[str]) -> Any:
        try:
            return self.fn(question.text, judged, list(question.words))
        except Exception as error:  # whatever a person's own function may raise
            place = where(traceback.extract_tb(error.__traceback__))
            raise RunError(f"judge {self.name} raised {type(error).__name__}: {error}{place}") from error

    def _checked(self, found: Any) -> dict[str, float]:
        try:
            shares = {str(word): float(p) for word, p in found.items()} if isinstance(found, Mapping) else {}
        except (TypeError, ValueError):
            shares = {}
        if not shares or not all(math.isfinite(p) and 0 <= p <= 1 for p in shares.values()):
            raise RunError(
                f"judge {self.name} gave {found!r:.60}; a judge gives the probability of each verdict, as in "
                '{"A": 0.7, "B": 0.3}, or None'
            )
        return shares
