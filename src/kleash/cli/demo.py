"""`kleash demo`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson


def demo(
    out: Annotated[Path | None, typer.Option(help="Where the runs go; left out, runs/demo.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also beta 0.01 and 0.5.")] = False,
    road: Annotated[bool, typer.Option("--rlhf", help="Texts, preferences, reward model, RL: in runs/rlhf.")] = False,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of every run.")] = 0,
    as_json: AsJson = False,
) -> None:
    """The leash seen: the embedded tiny model trained without it, with it, and holding a KL target."""
    from kleash.demo.rlhf import run_rlhf
    from kleash.demo.run import run_demo
    from kleash.training.interrupt import stopped_code

    try:
        if road:
            told = run_rlhf(out or Path("runs/rlhf"), steps=steps, seed=seed, quiet=as_json)
        else:
            told = run_demo(out or Path("runs/demo"), everything=everything, steps=steps, seed=seed, quiet=as_json)
    except KeyboardInterrupt as stop:
        raise typer.Exit(stopped_code(stop)) from None
    if as_json:
        typer.echo(json.dumps(told))
