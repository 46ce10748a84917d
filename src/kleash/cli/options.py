"""What several verbs share: their options, and how they say what came of it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Settings by name: kl.target='2 nats/sequence' train.steps=100")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Seed = Annotated[int | None, typer.Option(help="Short for train.seed=N.")]


def say(as_json: bool, told: dict[str, Any], text: str) -> None:
    typer.echo(json.dumps(told) if as_json else text)


def stopped(stop: KeyboardInterrupt, out: str, again: str, verb: str = "train") -> str:
    by = str(stop) or "Ctrl-C"
    if not any(Path(out).glob("**/events.jsonl")):
        return f"stopped by {by} before the first step. Start again: kleash {verb} {again}"
    return f"stopped by {by}; what was done is in {out}. Go on: kleash {verb} {again} --resume"
