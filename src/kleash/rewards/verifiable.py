"""Rewards that check an answer: 1.0 if right, 0.0 if not, None where the data has no answer."""

import math
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict

from kleash.errors import UsageError

# A sign counts only where it does not follow a letter or digit ("3-4" ends in 4), commas only as thousands separators.
_NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Exact:
    """Is the completion the answer, apart from case, white space, Unicode compatibility forms and a final full stop?"""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    column: str = "answer"

    def __call__(self, completions: list[str], **columns: list[Any]) -> list[float | None]:
        answers = _column(columns, self.column, "exact")
        return [
            None if answer is None else float(_normal(text) == _normal(str(answer)))
            for text, answer in zip(completions, answers, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Numeric:
    """Is the last number of the completion the last number of the answer, within `tolerance` (absolute or relative)?

    "1,234.5", "-2", "3e-4" and ".5" are numbers; fractions and percent signs are not understood. A completion without a
    number is wrong.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    column: str = "answer"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise UsageError(f"numeric reward: tolerance must be 0 or more, not {self.tolerance}")

    def __call__(self, completions: list[str], **columns: list[Any]) -> list[float | None]:
        answers = _column(columns, self.column, "numeric")
        return [self._one(text, answer) for text, answer in zip(completions, answers, strict=True)]

    def _one(self, completion: str, answer: object) -> float | None:
        if answer is None:
            return None
        right, given = last_number(str(answer)), last_number(completion)
        if right is None:
            raise ValueError(f"there is no number in the column {self.column!r}: {answer!r}")
        return float(given is not None and math.isclose(given, right, rel_tol=self.tolerance, abs_tol=self.tolerance))


@dataclass(frozen=True, slots=True)
class Regex:
    """Does the pattern occur in the completion (`re.search`; flags inline, as in "(?i)^yes")?"""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"regex reward: the pattern {self.pattern!r} is not valid: {error}") from None

    def __call__(self, completions: list[str], **_: list[Any]) -> list[float]:
        return [float(re.search(self.pattern, text) is not None) for text in completions]


def last_number(text: str) -> float | None:
    """The last number written in the text; None if there is none."""
    found = _NUMBER.findall(text.replace("−", "-"))
    return float(found[-1].replace(",", "")) if found else None


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".").rstrip()


def _column(columns: dict[str, list[Any]], name: str, reward: str) -> list[Any]:
    if name not in columns:
        there = ", ".join(f"`{column}`" for column in sorted(columns)) or "no other column"
        raise UsageError(f"the {reward} reward needs the column `{name}` beside the prompts; there is {there}")
    return columns[name]
