"""`kleash sample`: what models say, side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson
from kleash.errors import UsageError


def sample(
    models: Annotated[list[str], typer.Argument(help="Models, runs, or runs/x@step-200; each answers.")],
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="A prompt; several times for more.")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file of prompts, as for training.")] = None,
    beside: Annotated[str | None, typer.Option(help="A model to compare with, or base: the adapter's own.")] = None,
    samples: Annotated[int, typer.Option(help="Answers to each prompt.")] = 1,
    tokens: Annotated[int, typer.Option(help="The most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="Above 0.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens that reach this; 1 keeps all.")] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="The likeliest token each time.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Go on with the text, past any chat template.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed, the same answers.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Ask models the same prompts; with --beside every token is coloured by its KL to that model.

    kleash sample runs/polite --beside base -p "The hotel by the lake"
    """
    from rich.console import Console

    from kleash.models.sampling import Sampling
    from kleash.training.data import read_prompts
    from kleash.training.interrupt import stopped_code
    from kleash.training.sample import speakers, turns
    from kleash.training.spoken import record, show

    asked = [*(prompt or []), *([] if prompts is None else read_prompts(prompts).prompts)]
    if not asked:
        raise UsageError('nothing to ask: give a prompt with -p "…", or a file with --prompts')
    if samples < 1:
        raise UsageError(f"--samples {samples} must be at least 1")
    settings = Sampling(max_new_tokens=tokens, temperature=temperature, top_p=top_p, top_k=1 if greedy else 0)
    try:
        spoken = turns(speakers(models, beside), asked, settings, samples=samples, seed=seed, raw=raw)
        if as_json:
            typer.echo(json.dumps([record(turn, list(turn.tokens)) for turn in spoken]))
        else:
            show(spoken, Console(highlight=False), beside)
    except KeyboardInterrupt as stop:
        raise typer.Exit(stopped_code(stop)) from None
