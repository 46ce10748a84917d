"""What a judge said, and what it means: a probability for each allowed verdict, or a reason why there is none."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from kleash.rewards.judge.questions import Question

#: A judge that can be reached and does not judge. It would not the next time either, so that is remembered.
UNANSWERED = "not answering: too little of its probability on the verdicts"
UNPARSED = "not answering: its text is no verdict"


class Said(NamedTuple):
    """A judge's answer.

    shares: probability of each verdict among all tokens, where the judge gives probabilities; else its `text`.
    failure: why there is neither. tokens_in, tokens_out, tries: what it cost, where that is known. lost: it failed on
    the way, and may not fail again.
    """

    shares: dict[str, float] | None = None
    text: str | None = None
    failure: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    tries: int = 1
    lost: bool = False


@runtime_checkable
class Backend(Protocol):
    """Whatever answers questions."""

    @property
    def identity(self) -> dict[str, Any]:
        """All that decides its answers: what they are remembered by."""
        ...

    def ask(self, questions: Sequence[Question]) -> Generator[tuple[int, Said]]:
        """Every question's number and answer, in the order in which they come."""
        ...


class Verdict(NamedTuple):
    """weights: of each allowed word, adding up to 1; None with a reason. mass: probability on all of them together."""

    weights: dict[str, float] | None
    mass: float | None = None
    reason: str | None = None


def verdict(said: Said, words: Sequence[str], least_mass: float) -> Verdict:
    """Nothing is guessed: too little probability on the verdicts, or any other text, is no verdict."""
    if said.failure is not None:
        return Verdict(None, reason=said.failure)
    if said.shares is not None:
        mass = sum(said.shares.get(word, 0.0) for word in words)
        if not mass > least_mass:
            return Verdict(None, mass, UNANSWERED)
        return Verdict({word: said.shares.get(word, 0.0) / mass for word in words}, mass)
    word = parsed(said.text or "", words)
    return Verdict(None, reason=UNPARSED) if word is None else Verdict({w: float(w == word) for w in words})


def parsed(text: str, words: Sequence[str]) -> str | None:
    """The verdict that is all of the last line, marks aside ("**B**", "(3)", "A."); None if it is anything else."""
    lines = text.strip().splitlines()
    last = lines[-1].strip(" \t*_`'\"().:[]") if lines else ""
    return last if last in words else None
