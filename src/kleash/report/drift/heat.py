"""Texts with each token coloured by how far the models are apart on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from kleash.drift.records import Passage, Token
from kleash.report.drift.words import nats

#: From which KL (nats) a token has the colour of this level; the same on every page, so that pages compare.
LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: Tokens of one set of texts, in whole passages (the first is always shown, cut if need be): about 85 bytes each.
MOST_TOKENS = 3000
MOST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class Shown:
    """One passage, drawn."""

    id: str
    domain: str | None
    prompt: str
    forward: float
    tokens: Markup
    cut: int


def shown(passages: Sequence[Passage]) -> list[Shown]:
    """The passages that moved most, as many as there is room for, each with its tokens drawn."""
    ordered = sorted(passages, key=lambda one: -one.forward)
    found: list[Shown] = []
    room = MOST_TOKENS
    for one in ordered:
        if found and len(one.tokens) > room:
            continue
        kept = one.tokens[:room]
        room -= len(kept)
        prompt = one.prompt if len(one.prompt) <= MOST_CHARACTERS else "… " + one.prompt[-MOST_CHARACTERS:]
        drawn = Markup("").join(map(token, kept))
        found.append(Shown(one.id, one.domain, prompt, one.forward, drawn, len(one.tokens) - len(kept)))
    return found


def token(one: Token) -> Markup:
    """`<i class="h3" data-tip="…">`, the token's text with line breaks made visible."""
    css = level(one.forward) + (" flip" if one.flipped else "")
    return Markup('<i class="{}" data-tip="{}">{}</i>').format(css, tip(one), visible(one.text))


def level(value: float | None) -> str:
    """h0 (under the first level) to h6; hx where it was not measured."""
    return "hx" if value is None else f"h{sum(value >= at for at in LEVELS)}"


def tip(one: Token) -> str:
    told = "KL not measured" if one.forward is None else f"KL {nats(one.forward)}"
    if one.delta is not None:
        told += f"\nlog-prob {one.delta:+.2f}"
    return told + ("\nlikeliest token changed" if one.flipped else "")


def visible(text: str) -> str:
    """Line breaks get a sign before them; other control codes, which a page would swallow, become one as well."""
    marked = text.replace("\r", "").replace("\n", "⏎\n")
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in marked) or "∅"


def legend() -> list[tuple[str, str]]:
    """Class and meaning of each colour."""
    names = [
        f"below {LEVELS[0]:g}",
        *(f"{low:g}–{high:g}" for low, high in pairwise(LEVELS)),
        f"{LEVELS[-1]:g} and more",
    ]
    return [(f"h{number}", name) for number, name in enumerate(names)]
