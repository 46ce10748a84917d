"""Numbers as logs write them: bare NaN, "NaN", null, numpy's repr; whatever is no number is left out."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

_WORDS = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}
_WRAPPED = re.compile(r"(?:np\.|numpy\.|torch\.)?(?:float|int|tensor)\w*\((.+?)(?:, .*)?\)")
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def number(value: Any) -> float | None:
    """The number; NaN for NaN, "NaN" and null; None for what is no number (texts, lists, booleans)."""
    if isinstance(value, float):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _float(value)
    if value is None:
        return math.nan
    return _WORDS.get(value.lower()) if isinstance(value, str) else None


def spelled(text: str) -> float | None:
    """The number that a console line spells: "0.5", "1e-3", "nan", "np.float64(0.5)", "None"."""
    text = text.strip()
    if _PLAIN.fullmatch(text):
        return _float(text)
    if text == "None":
        return math.nan
    wrapped = _WRAPPED.fullmatch(text)
    return spelled(wrapped[1]) if wrapped else _WORDS.get(text.lower())


#: Rows are flat, or nested by a part of the trainer; what lies deeper is no metric.
DEEPEST = 3


def numbers(row: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, float]]:
    """The items of a row that are numbers; nested mappings by "outer/inner"."""
    for key, value in row.items():
        if type(value) is float:
            yield key, value
        elif isinstance(value, dict):
            if depth < DEEPEST:
                yield from ((f"{key}/{inner}", found) for inner, found in numbers(value, depth + 1))
        elif (found := number(value)) is not None:
            yield str(key), found


def whole(value: Any) -> int | None:
    """A step number: a whole number that fits 63 bits, also as 12.0 or "12"."""
    found = spelled(value) if isinstance(value, str) else number(value)
    if found is None or not math.isfinite(found) or found != int(found) or abs(found) >= 2**62:
        return None
    return int(found)


def _float(value: int | str) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if not str(value).startswith("-") else -math.inf
