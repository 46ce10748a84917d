"""Questions about a short text: what it says, and whether it says so. Written by a program with a fixed seed."""

import random
import re
from typing import NamedTuple

from kleash.drift.scores.builtin.made import ITEMS, task
from kleash.drift.scores.task import Task

FACTS = {
    "name": ("Anna", "Boris", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Ivan", "Jun", "Kofi", "Lena"),
    "job": ("baker", "nurse", "pilot", "painter", "farmer", "lawyer", "plumber", "teacher", "singer", "tailor"),
    "city": ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Seoul", "Paris", "Accra", "Perth"),
    "pet": ("cat", "dog", "parrot", "rabbit", "goat", "turtle", "horse", "duck"),
}
ASKED = {
    "job": ("What is {name}'s job?", "Is {name} a {value}?"),
    "city": ("In which city does {name} live?", "Does {name} live in {value}?"),
    "pet": ("What kind of animal does {name} have?", "Does {name} have a {value}?"),
}


class _Fact(NamedTuple):
    passage: str
    name: str
    kind: str
    value: str
    other: str


def lookup() -> Task:
    """One fact about one of two people."""
    items = [
        (f"{one.passage}\n\n{ASKED[one.kind][0].format(name=one.name)}", (one.value, one.other))
        for one in _facts("kleash lookup 1")
    ]
    return task("lookup", "reading", items, _says, max_new_tokens=24)


def yes_or_no() -> Task:
    """Whether a fact is so: in every other item it is."""
    items = []
    for number, one in enumerate(_facts("kleash yes or no 1")):
        said = one.value if number % 2 else one.other
        question = ASKED[one.kind][1].format(name=one.name, value=said)
        items.append((f"{one.passage}\n\n{question} Answer yes or no.", "yes" if number % 2 else "no"))
    return task("yes or no", "reading", items, _begins, max_new_tokens=8)


def _facts(seed: str) -> list[_Fact]:
    draw = random.Random(seed)
    found = []
    for number in range(ITEMS):
        pair = {kind: draw.sample(values, 2) for kind, values in FACTS.items()}
        told = [
            "{name} is a {job}, lives in {city} and has a {pet}.".format(
                **{kind: values[n] for kind, values in pair.items()}
            )
            for n in (0, 1)
        ]
        who, kind = draw.randrange(2), tuple(ASKED)[number % 3]
        found.append(_Fact(" ".join(told), pair["name"][who], kind, pair[kind][who], pair[kind][1 - who]))
    return found


def _says(answer: str, want: tuple[str, str]) -> bool:
    """The right one of the two is in the answer, and the wrong one is not."""
    said = set(re.findall(r"\w+", answer.casefold()))
    return want[0].casefold() in said and want[1].casefold() not in said


def _begins(answer: str, want: str) -> bool:
    first = re.search(r"\w+", answer.casefold())
    return first is not None and first.group() == want
