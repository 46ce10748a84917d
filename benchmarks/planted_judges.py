"""Judges whose taste is known, behind the interface for one's own: "judge:benchmarks/planted_judges.py:shorter"."""

import hashlib
from collections.abc import Sequence

#: Share of the pairs in which `hasty` takes the first answer whatever it is.
PLANTED = 0.2


def shorter(question: str, judged: Sequence[str], words: Sequence[str]) -> dict[str, float]:
    """Prefers the answer with fewer words."""
    return _preferring(-_length(judged[1]), -_length(judged[2]))


def longer(question: str, judged: Sequence[str], words: Sequence[str]) -> dict[str, float]:
    """Prefers the answer with more words."""
    return _preferring(_length(judged[1]), _length(judged[2]))


def coin(question: str, judged: Sequence[str], words: Sequence[str]) -> dict[str, float]:
    """Prefers by chance, and always the same."""
    return _preferring(_chance(judged[1]), _chance(judged[2]))


def hasty(question: str, judged: Sequence[str], words: Sequence[str]) -> dict[str, float]:
    """Prefers the shorter answer, but in a fifth of the pairs the first, whatever it is."""
    hurried = _chance("".join(sorted(judged))) < PLANTED
    return {"A": 1.0, "B": 0.0} if hurried else shorter(question, judged, words)


def _preferring(first: float, second: float) -> dict[str, float]:
    p = 0.5 if first == second else float(first > second)
    return {"A": p, "B": 1 - p}


def _length(text: str) -> int:
    return len(text.split())


def _chance(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48
