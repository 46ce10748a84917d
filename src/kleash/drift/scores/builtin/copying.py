"""Saying again what was said: a sentence, or words that make none. Written by a program with a fixed seed."""

import random
import re
from itertools import product

from kleash.drift.scores.builtin.made import ITEMS, task
from kleash.drift.scores.task import Task

WHO = ("The old captain", "My neighbour", "A tall woman", "The new teacher", "Our cousin", "The young cook")
DID = ("painted", "carried", "sold", "found", "repaired", "hid", "borrowed", "dropped")
WHAT = ("a red bicycle", "the broken clock", "two heavy boxes", "an empty bottle", "the garden gate", "a silver spoon")
WHERE = ("behind the school", "near the river", "on Thursday morning", "after the storm", "in the kitchen", "at noon")
WORDS = (
    *("river", "stone", "apple", "window", "horse", "candle", "forest", "silver", "bridge", "pepper"),
    *("cotton", "garden", "mirror", "planet", "rocket", "saddle", "ticket", "valley", "walnut", "yellow"),
    *("anchor", "basket", "carpet", "dragon", "engine", "feather", "guitar", "hammer", "island", "jacket"),
)


def copy() -> Task:
    """A sentence, word for word."""
    chosen = random.Random("kleash copy 1").sample(list(product(WHO, DID, WHAT, WHERE)), ITEMS)
    sentences = [" ".join(parts) + "." for parts in chosen]
    items = [(f"Repeat this sentence exactly, and write nothing else: {one}", one) for one in sentences]
    return task("copy", "copying", items, _is_sentence, max_new_tokens=24)


def copy_words() -> Task:
    """Three words that do not belong together, in their order."""
    draw = random.Random("kleash copy words 1")
    rows = [draw.sample(WORDS, 3) for _ in range(ITEMS)]
    items = [(f"Repeat these words exactly, and write nothing else: {' '.join(words)}", words) for words in rows]
    return task("copy words", "copying", items, _are_words, max_new_tokens=24)


def _is_sentence(answer: str, want: str) -> bool:
    return " ".join(answer.split()).strip("\"'“” ") == want


def _are_words(answer: str, want: list[str]) -> bool:
    """The words of the answer are these in this order; what joins them does not count."""
    return re.findall(r"[a-z]+", answer.casefold()) == want
