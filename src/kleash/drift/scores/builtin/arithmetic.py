"""Sums, and sums in a story. Written by a program with a fixed seed."""

import math
import random

from kleash.drift.scores.builtin.made import ITEMS, task
from kleash.drift.scores.task import Task
from kleash.rewards.verifiable import last_number

#: Stories with what is asked as a function of a > b.
STORIES = (
    ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", "a+b"),
    ("{name} had {a} {things} and gave away {b}. How many {things} are left?", "a-b"),
    ("There are {a} {things} in one box and {b} in another. How many {things} are there in both boxes?", "a+b"),
    ("{name} needs {a} {things} and already has {b}. How many {things} are missing?", "a-b"),
    ("A shop sold {a} {things} on Monday and {b} on Tuesday. How many {things} did it sell in the two days?", "a+b"),
    ("Of {a} {things}, {b} are broken. How many {things} are not broken?", "a-b"),
)
NAMES = ("Anna", "Boris", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Ivan", "Jun")
THINGS = ("apples", "books", "stamps", "chairs", "pencils", "plates", "coins", "tickets", "candles", "marbles")


#: The largest numbers of three grades, so that a small model can do some and a large one not all.
GRADES = (9, 20, 99)


def sums() -> Task:
    """Adding and taking away."""
    draw = random.Random("kleash sums 1")
    found: dict[str, int] = {}
    while len(found) < ITEMS:
        a, b = _numbers(draw, len(found))
        sign = "+-"[len(found) % 2]
        found[f"What is {a} {sign} {b}?"] = a + b if sign == "+" else a - b
    return task("sums", "arithmetic", list(found.items()), _is_number, max_new_tokens=24)


def word_problems() -> Task:
    """The same sums in a sentence or two."""
    draw = random.Random("kleash word problems 1")
    items = []
    for number in range(ITEMS):
        story, how = STORIES[number % len(STORIES)]
        a, b = _numbers(draw, number)
        question = story.format(name=draw.choice(NAMES), things=draw.choice(THINGS), a=a, b=b)
        items.append((f"{question} Answer with the number.", a + b if how == "a+b" else a - b))
    return task("word problems", "arithmetic", items, _is_number, max_new_tokens=32)


def _numbers(draw: random.Random, number: int) -> tuple[int, int]:
    """Two numbers, the larger first."""
    most = GRADES[number // len(STORIES) % len(GRADES)]
    b, a = sorted(draw.sample(range(2, most + 1), 2))
    return a, b


def _is_number(answer: str, want: int) -> bool:
    """The last number of the answer is the one."""
    found = last_number(answer)
    return found is not None and math.isclose(found, want)
