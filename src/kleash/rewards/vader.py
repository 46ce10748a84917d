"""VADER sentiment: a small, fast, rule-based reward, good for trying things out."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ConfigDict
from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer


@dataclass(frozen=True, slots=True)
class Vader:
    """VADER's compound sentiment of each completion, from −1 (most negative) to 1 (most positive).

    Source: Hutto & Gilbert 2014, "VADER: A Parsimonious Rule-based Model for Sentiment Analysis of Social Media Text".
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    def __call__(self, completions: list[str], **_: list[Any]) -> list[float]:
        return [_analyzer().polarity_scores(text)["compound"] for text in completions]


@cache
def _analyzer() -> SentimentIntensityAnalyzer:
    return SentimentIntensityAnalyzer()
