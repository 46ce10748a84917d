"""The notation in which the demo's grammar is written, and the tree it is read into.

words           themselves, as they stand inside a sentence; punctuation stands apart
( x | y )  [x]  one of them; x or nothing
<x>  <x!>       the phrase named x; the same with the opposite mood
<x+> <x-> <x=>  the phrase in the mood named
<a x>           "a" or "an", as the first letter asks, and then the phrase
~               nothing: where a prompt may be cut
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

HINGE = "~"
_VOWEL = re.compile(r"[aeiou](?!ne-|se|su)")  # "a useful", "a usual", "a one-sided"
_SYMBOL = re.compile(r"<[^>]+>|[()\[\]|]|[^\s()\[\]|<>]+")


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """One word out of several."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of the options, drawn with these weights."""

    options: tuple["Node", ...]
    weights: tuple[float, ...]


Node = Words | Sequence | Choice
EMPTY = Sequence(())
OPTIONAL_SHARE = 0.4  # how often what stands in [ ] is said


def read(pattern: str, phrase: Callable[[str], Node]) -> Node:
    """The tree of `pattern`; `phrase` gives the tree of what stands in < >.

    Raises:
        ValueError: brackets that do not match.
    """
    symbols = _SYMBOL.findall(pattern)
    node, rest = _choice(symbols, phrase)
    if rest:
        raise ValueError(f"unmatched {rest[0]!r} in the pattern {pattern!r}")
    return node


def _choice(symbols: list[str], phrase: Callable[[str], Node]) -> tuple[Node, list[str]]:
    options: list[Node] = []
    while True:
        node, symbols = _sequence(symbols, phrase)
        options.append(node)
        if not symbols or symbols[0] != "|":
            return choose(options), symbols
        symbols = symbols[1:]


def _sequence(symbols: list[str], phrase: Callable[[str], Node]) -> tuple[Node, list[str]]:
    parts: list[Node] = []
    while symbols and symbols[0] not in ("|", ")", "]"):
        symbol, symbols = symbols[0], symbols[1:]
        if symbol in ("(", "["):
            node, symbols = _choice(symbols, phrase)
            if symbols[:1] != [")" if symbol == "(" else "]"]:
                raise ValueError(f"{symbol!r} is not closed")
            symbols = symbols[1:]
            parts.append(node if symbol == "(" else Choice((node, EMPTY), (OPTIONAL_SHARE, 1 - OPTIONAL_SHARE)))
        elif symbol.startswith("<a "):
            parts.append(with_article(phrase(symbol[3:-1])))
        elif symbol.startswith("<"):
            parts.append(phrase(symbol[1:-1]))
        else:
            parts.append(Words((symbol,)))
    return (parts[0] if len(parts) == 1 else Sequence(tuple(parts))), symbols


def choose(options: list[Node]) -> Node:
    """One of these, single words gathered into one `Words` that keeps their share."""
    words = tuple(w for option in options if isinstance(option, Words) for w in option.words)
    others = [option for option in options if not isinstance(option, Words)]
    if not others:
        return Words(words)
    if not words:
        return others[0] if len(others) == 1 else Choice(tuple(others), (1.0,) * len(others))
    return Choice((Words(words), *others), (float(len(words)), *(1.0 for _ in others)))


def with_article(node: Node) -> Node:
    """`node` behind "a" or "an", told by how its first word begins."""
    if isinstance(node, Words):
        sides: dict[str, list[str]] = {}
        for word in node.words:
            sides.setdefault("an" if _VOWEL.match(word) else "a", []).append(word)
        options = [Sequence((Words((article,)), Words(tuple(words)))) for article, words in sides.items()]
        return Choice(tuple(options), tuple(float(len(words)) for words in sides.values()))
    if isinstance(node, Sequence):
        return Sequence((with_article(node.parts[0]), *node.parts[1:]))
    return Choice(tuple(with_article(option) for option in node.options), node.weights)


def spell(node: Node, rng: random.Random) -> list[str]:
    """One random sentence of the tree, word by word, the hinges among them."""
    if isinstance(node, Words):
        return [rng.choice(node.words)]
    if isinstance(node, Sequence):
        return [word for part in node.parts for word in spell(part, rng)]
    return spell(rng.choices(node.options, node.weights)[0], rng)
