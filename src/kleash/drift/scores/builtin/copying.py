"""Saying again what was said: as it was, or the words in reverse order. Written by a program with a fixed seed."""

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
    draw = random.Random("kleash copy 1")
    sentences = [" ".join(parts) + "." for parts in draw.sample(list(product(WHO, DID, WHAT, WHERE)), ITEMS)]
    items = [(f"Repeat this sentence exactly, and write nothing else: {one}", one) for one in sentences]
    return task("copy", "copying", items, _is_copy, max_new_tokens=32)


def reverse() -> Task:
    """Three words, the last one first."""
    draw = random.Random("kleash reverse 1")
    triples = [draw.sample(WORDS, 3) for _ in range(ITEMS)]
    items = [
        (f"Write these words in reverse order, the last one first: {' '.join(words)}", words[::-1]) for words in triples
    ]
    return task("reverse", "copying", items, _is_order, max_new_tokens=24)


def _is_copy(answer: str, want: str) -> bool:
    return " ".join(answer.split()).strip("\"'“” ") == want


def _is_order(answer: str, want: list[str]) -> bool:
    """The words of the answer are these in this order; what joins them does not count."""
    return re.findall(r"[a-z]+", answer.casefold()) == want
