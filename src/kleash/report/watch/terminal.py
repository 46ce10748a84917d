"""The summary as a block of text: coloured on a terminal, the same words in a file."""

import textwrap
from collections.abc import Iterator

from rich.text import Text

from kleash.characters import printable
from kleash.report.watch import words
from kleash.report.watch.case import Case
from kleash.report.watch.follow import Follower

COLOURS: dict[words.Tone, str] = {"": "", "good": "green", "mixed": "yellow", "bad": "red", "soft": "dim"}
#: Width of the labels' column, and of a line where nobody says how wide the screen is.
LABEL, WIDTH = 9, 118


def block(case: Case, width: int = WIDTH) -> Text:
    """All lines. What a log or a model wrote cannot steer the terminal."""
    head, tail = words.headline(case), f"exit {case.exit_code}"
    first = Text(printable(head.text), style=f"bold {COLOURS[head.tone]}")
    first.append(" " * max(3, width - len(first) - len(tail)) + tail, style="dim not bold")
    lines, label = [first], ""
    for said in words.lines(case):
        lines += drawn(said, width, "" if said.label == label else said.label)
        label = said.label or label
    return Text("\n").join(lines)


def drawn(said: words.Line, width: int, label: str) -> Iterator[Text]:
    """One line of words, as many of the screen; a label stands once above what belongs to it."""
    text = printable(said.text)
    folded = [text] if said.command else textwrap.wrap(text, max(20, width - LABEL), break_on_hyphens=False)
    for number, part in enumerate(folded):
        margin = Text((label if number == 0 else "").ljust(LABEL), style="bold")
        yield margin.append(part, style=f"not bold {COLOURS[said.tone]}".strip())


def standing(follower: Follower, width: int = WIDTH) -> Text:
    """A followed log as it stands: what the newest look that succeeded says, and why the newest did not."""
    parts = [] if follower.case is None else [block(follower.case, width)]
    if follower.trouble is not None:
        waits = "" if follower.case is None else "not read anew: "
        parts.append(Text(printable(f"{waits}{follower.trouble}; looking again when it changes"), style="yellow"))
    return Text("\n").join(parts)
