"""The grammar of the tiny model's corpus: it writes the notes, and it judges fluency.

A note is one to three sentences about one thing, in one mood: it praises, complains or merely reports. The
judge is a recogniser for the same grammar, word by word: agreement, articles, word order, capitals and spacing,
and words that belong to one topic. Mood is not its business: it takes a sentence whose moods are mixed. It
knows nothing of any model's likelihood, so a KL measured against a model cannot judge itself through it.

`fluency` costs well under a millisecond a text once the automaton stands (a fraction of a second, at the first call).
"""

import random
import re
from functools import cache

from kleash.demo.automaton import Automaton
from kleash.demo.more_topics import MORE_TOPICS
from kleash.demo.patterns import HINGE, Choice, Node, choose, read, spell
from kleash.demo.rules import PHRASES
from kleash.demo.topics import TOPICS
from kleash.errors import UsageError

ALL_TOPICS = TOPICS | MORE_TOPICS
MOODS = {"+": 0.45, "-": 0.28, "=": 0.27}  # share of notes that praise, complain, merely report
LENGTHS = {1: 0.25, 2: 0.5, 3: 0.25}  # share of notes with so many sentences
MAX_SENTENCES = max(LENGTHS)
MAX_WORDS = 32  # of a note, punctuation included

ANY = "*"  # all moods at once, word by word: the judge's

_OPPOSITE = {"+": "-", "-": "+", "=": "=", ANY: ANY}
_SENTENCE = re.compile(r"[^.!?]*[.!?]|[^.!?]+$")
_WORD = re.compile(r"[^\s,.!?]+|[,.!?]")


@cache
def phrase(name: str, topic: str, mood: str) -> Node:
    """The tree of the phrase `name` of `kleash.demo.rules`, said about `topic` in `mood`."""
    if name[-1] in "+-=":
        name, mood = name[:-1], name[-1]
    elif name[-1] == "!":
        name, mood = name[:-1], _OPPOSITE[mood]
    marked = [name + mark for mark in (MOODS if mood == ANY else mood)]
    for lexicon in (ALL_TOPICS[topic], PHRASES):
        for keys in (marked, [name]):
            patterns = [lexicon[key] for key in keys if key in lexicon]
            if patterns:
                return choose([read(pattern, lambda inner: phrase(inner, topic, mood)) for pattern in patterns])
    raise KeyError(f"the grammar has no phrase {name!r} (topic {topic}, mood {mood})")


@cache
def recogniser(mood: str = ANY) -> Automaton:
    """The recogniser of every sentence that a note in this mood may have."""
    kinds = [phrase(name, topic, mood) for name in ("open", "follow") for topic in ALL_TOPICS]
    return Automaton(Choice(tuple(kinds), (1.0,) * len(kinds)))


def generate(rng: random.Random) -> str:
    """One note."""
    return _note(rng)[1]


def corpus(count: int, seed: int) -> list[str]:
    """So many notes, the same ones for the same seed."""
    rng = random.Random(seed)
    return [generate(rng) for _ in range(count)]


def fluency(texts: list[str]) -> float:
    """The mean over the texts of the share of their sentences that the grammar can say, 0 to 1.

    A last sentence without its end mark counts as cut off: it must be the beginning of some sentence, and its
    last word the beginning of a word. Sentences beyond a note's third, and sentences said before in the same
    text, do not count as fluent (a note has neither). An empty text has fluency 0.

    Raises:
        UsageError: no texts.
    """
    if not texts:
        raise UsageError("fluency needs at least one text")
    return sum(_share(text) for text in texts) / len(texts)


def parses(text: str) -> bool:
    """Whether every sentence of the text is one of the grammar's, whole or cut off at the end of the text."""
    return _share(text) == 1.0


def sentences(text: str) -> list[str]:
    """The text's sentences with their end marks; the last may have none."""
    return [sentence for match in _SENTENCE.findall(text) if (sentence := match.strip())]


def joined(words: list[str]) -> str:
    """Words as a sentence: a capital first, no space before a punctuation mark."""
    text = re.sub(r" ([,.!?])", r"\1", " ".join(words))
    return text[:1].upper() + text[1:]


def _share(text: str) -> float:
    said = sentences(text)
    if not said or re.search(r"\s{2}|[^\S ]", text.strip()):
        return 0.0
    fluent = [_fluent(sentence) and sentence not in said[:i] for i, sentence in enumerate(said[:MAX_SENTENCES])]
    return sum(fluent) / len(said)


def _fluent(sentence: str) -> bool:
    words = _WORD.findall(sentence)
    if joined(words) != sentence:
        return False
    grammar = recogniser()
    for first in {words[0], words[0][0].lower() + words[0][1:]}:
        spelt = [first, *words[1:]]
        if grammar.accepts(spelt) if words[-1] in ".!?" else grammar.begins(spelt[:-1], spelt[-1]):
            return True
    return False


def _note(rng: random.Random) -> tuple[str, str]:
    """A note's opening, up to where a prompt may be cut, and the whole note."""
    while True:
        topic = rng.choice(list(ALL_TOPICS))
        (mood,) = rng.choices(list(MOODS), list(MOODS.values()))
        (length,) = rng.choices(list(LENGTHS), list(LENGTHS.values()))
        kinds = ["open"] + ["follow"] * (length - 1)
        spelt = [spell(phrase(kind, topic, mood), rng) for kind in kinds]
        said = [joined([word for word in words if word != HINGE]) for words in spelt]
        if sum(map(len, spelt)) <= MAX_WORDS and len(set(said)) == length:
            first = spelt[0]
            opening = joined(first[: first.index(HINGE)]) if HINGE in first else ""
            return opening, " ".join(said)


def _prompts(count: int, seed: int) -> list[str]:
    """Openings of three words or more, drawn from the grammar; no two begin with the same three words."""
    rng = random.Random(seed)
    found: dict[tuple[str, ...], str] = {}
    while len(found) < count:
        opening, _ = _note(rng)
        words = opening.split()
        if len(words) >= 3:
            found.setdefault(tuple(words[:3]), opening)
    return list(found.values())


#: Natural openings to complete, of three words and more, none of which tells whether praise or complaint follows.
PROMPTS: list[str] = _prompts(128, seed=0)
