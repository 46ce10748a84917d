"""Answers in a form: a JSON object with given keys, a list of so many lines. Written by a program with a fixed seed."""

import json
import random
import re

from kleash.drift.scores.builtin.made import ITEMS, task
from kleash.drift.scores.task import Task

PEOPLE = ("Anna", "Boris", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Ivan", "Jun", "Kofi", "Lena")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Seoul", "Paris", "Accra", "Perth")
JOBS = ("baker", "nurse", "pilot", "painter", "farmer", "lawyer", "plumber", "teacher", "singer", "tailor")
KINDS = (
    "fruits",
    "animals",
    "colours",
    "countries",
    "sports",
    "vegetables",
    "tools",
    "instruments",
    "drinks",
    "flowers",
    "trees",
    "birds",
    "cities in Europe",
    "kinds of weather",
    "pieces of furniture",
    "school subjects",
    "parts of the body",
    "things in a kitchen",
    "ways to travel",
    "clothes for winter",
)
#: Of a thing in a list.
MOST_WORDS = 4
NUMBERS = {3: "three", 4: "four", 5: "five"}


def as_json() -> Task:
    """The facts of a sentence as a JSON object."""
    draw = random.Random("kleash json 1")
    items = []
    for _ in range(ITEMS):
        name, city, job, age = draw.choice(PEOPLE), draw.choice(CITIES), draw.choice(JOBS), draw.randint(19, 79)
        wanted = {"name": name, "age": str(age), "job": job, "city": city}
        keys = draw.sample(sorted(wanted), 3)
        asked = f'"{keys[0]}", "{keys[1]}" and "{keys[2]}"'
        question = f"{name}, {age}, works as a {job} in {city}. Write this as a JSON object with the keys {asked}."
        items.append((question, {key: wanted[key] for key in keys}))
    return task("json", "format", items, _is_object, max_new_tokens=48)


def as_list() -> Task:
    """So many things of a kind, one a line, and nothing else."""
    items = [
        (f"Name {word} {kind}. Write one on each line, and nothing else.", number)
        for number, word in NUMBERS.items()
        for kind in KINDS
    ]
    return task("list", "format", items[:ITEMS], _is_list, max_new_tokens=40)


def _is_object(answer: str, want: dict[str, str]) -> bool:
    """The first JSON object of the answer has these keys and values, and no others; case does not count."""
    start = answer.find("{")
    if start < 0:
        return False
    try:
        found, _ = json.JSONDecoder().raw_decode(answer[start:])
    except ValueError:
        return False
    return {key: str(value).casefold() for key, value in found.items()} == {
        key: value.casefold() for key, value in want.items()
    }


def _is_list(answer: str, want: int) -> bool:
    """So many different lines, each of a few words, whatever bullet or number is before them."""
    lines = [re.sub(r"^(?:[-*•]|\d+[.)])\s*", "", line.strip()) for line in answer.splitlines() if line.strip()]
    things = {line.casefold() for line in lines if 1 <= len(line.split()) <= MOST_WORDS and not line.endswith(":")}
    return len(lines) == len(things) == want
