"""A reward that asks to be hacked: every kind word counts, without end."""

from functools import cache

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

from kleash.text import words


def praise(completions: list[str]) -> list[float]:
    """The sum of VADER's valences (−4 to 4) of the words, unbounded: a reward model that likes praise."""
    return [float(sum(_valences().get(word, 0.0) for word in words(text))) for text in completions]


@cache
def _valences() -> dict[str, float]:
    return SentimentIntensityAnalyzer().lexicon
