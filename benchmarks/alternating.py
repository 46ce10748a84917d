"""A reward that can be checked and asks for text far from the reference: notes whose mood turns at each sentence."""

import re

from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

#: Sentences of a whole answer. The tiny model's own notes have one or two.
SENTENCES = 6


def alternating(completions: list[str]) -> list[float]:
    """The share of SENTENCES that are there in order: glad, sorry, glad, … A sentence without a mood, or with the wrong
    one, ends the count, and so does an unfinished one."""
    judge = SentimentIntensityAnalyzer()
    return [_in_order(text, judge) / SENTENCES for text in completions]


def _in_order(text: str, judge: SentimentIntensityAnalyzer) -> int:
    sign = 1
    for count, sentence in enumerate(re.findall(r"[^.!?]+[.!?]", text)):
        mood = judge.polarity_scores(sentence)["compound"]
        if count == SENTENCES or sign * mood <= 0:
            return count
        sign = -sign
    return min(len(re.findall(r"[^.!?]+[.!?]", text)), SENTENCES)
