"""`kleash label`: verdicts of a judge."""

import sys
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, say


def label(
    pairs: Annotated[Path, typer.Argument(help="Rows with prompt, a and b, or with chosen and rejected.")],
    judge: Annotated[str, typer.Option(help="A model, the address of a server, or ./judge.py:function.")],
    rubric: Annotated[str, typer.Option(help="What is better: text, or the .md or .txt file that says it.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file for the labelled pairs.")],
    settings: Annotated[list[str] | None, typer.Argument(help="The judge's settings: model=NAME ties=true")] = None,
    tie: Annotated[float, typer.Option(help="How near to 1/2 a probability is a tie.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Have a judge say which of two answers is better: pairs for a reward model or DPO, with probabilities.

    Every verdict is kept as it comes; the same command again goes on where it stopped.
    """
    from kleash.models.load import pick_device
    from kleash.rewards.judge import Judge
    from kleash.training import label as labelling
    from kleash.training.interrupt import ended_by_signals, stopped_code
    from kleash.training.toml import with_overrides

    args = with_overrides({}, settings or []) | {"rubric": rubric}
    try:
        with ended_by_signals(), redirect_stdout(sys.stderr) if as_json else nullcontext():
            who = Judge.load(judge, args, str(pick_device("auto")))
            found = labelling.label(
                pairs, who, out, tie=tie, progress=labelling.now_and_then(lambda said: typer.echo(said, err=True))
            )
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            typer.echo("stopped; the verdicts so far are kept, and the same command goes on from them", err=True)
        raise typer.Exit(stopped_code(stop)) from None
    say(as_json, found.plain(), "\n".join(found.lines()))
