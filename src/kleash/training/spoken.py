"""Answers on a terminal, word by word as they are drawn, coloured by their KL; or as plain records."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from kleash.characters import printable
from kleash.report.log import prompt_text
from kleash.training.sample import Turn

#: From how many nats on a token is coloured, and how.
COLOURS = ((1.0, "bold red"), (0.3, "dark_orange"), (0.05, "yellow"))


def show(turns: Iterable[Turn], console: Console, beside: str | None) -> list[dict[str, Any]]:
    """Prints every turn as it comes; the records of `record`."""
    if beside is not None:
        legend = Text(f"KL of each token to {beside}: ", style="dim")
        for at, style in reversed(COLOURS):
            legend.append(f" ≥ {at:g} ", style=style)
        console.print(legend, Text("nats", style="dim"))
    found: list[dict[str, Any]] = []
    last: object = None
    for turn in turns:
        if turn.prompt is not last:
            console.print()
            console.print(Text(_lines(prompt_text(turn.prompt)), style="bold"), soft_wrap=True)
            last = turn.prompt
        console.print(Text(f"{turn.speaker}  ", style="cyan"), end="")
        tokens = []
        for token in turn.tokens:
            tokens.append(token)
            console.print(Text(_lines(token.text), style=_style(token.kl)), end="", soft_wrap=True)
        made = record(turn, tokens)
        console.print(Text(f"  {_sum(made)}", style="dim"), soft_wrap=True)
        found.append(made)
    return found


def record(turn: Turn, tokens: list[Any]) -> dict[str, Any]:
    """A turn as plain values. kl: of the sequence, in nats; None where nothing was compared."""
    kls = [token.kl for token in tokens]
    return {
        "prompt": turn.prompt,
        "model": turn.speaker,
        "sample": turn.sample,
        "text": "".join(token.text for token in tokens),
        "kl": None if None in kls else sum(kls),
        "logprob": sum(token.logprob for token in tokens),
        "tokens": [
            {"id": token.token, "text": token.text, "logprob": token.logprob, "kl": token.kl} for token in tokens
        ],
    }


def _sum(made: dict[str, Any]) -> str:
    length = len(made["tokens"])
    return f"({length} tokens)" if made["kl"] is None else f"({length} tokens, {made['kl']:.2f} nats)"


def _style(kl: float | None) -> str:
    return "" if kl is None else next((style for at, style in COLOURS if kl >= at), "")


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))
