"""`kleash label`: verdicts of a judge."""

import sys
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, say


def label(
    pairs: Annotated[
        Path, typer.Argument(help="Rows with prompt, a and b, or with chosen and rejected; with --sample, prompts.")
    ],
    judge: Annotated[str, typer.Option(help="A model, the address of a server, or ./judge.py:function.")],
    rubric: Annotated[str, typer.Option(help="What is better: text, or the .md or .txt file that says it.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file for the labelled pairs.")],
    settings: Annotated[list[str] | None, typer.Argument(help="The judge's settings: model=NAME ties=true")] = None,
    tie: Annotated[float, typer.Option(help="How near to 1/2 a probability is a tie.")] = 0.0,
    sampled: Annotated[
        str | None, typer.Option("--sample", help="A model or run that answers each prompt twice: these are judged.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="With --sample: the most tokens of an answer.")] = 128,
    temperature: Annotated[float, typer.Option(help="With --sample: above 0.")] = 1.0,
    seed: Annotated[int, typer.Option(help="With --sample: the same seed, the same answers.")] = 0,
    chat: Annotated[bool, typer.Option("--chat", help="With --sample: a text is a user's message.")] = False,
    as_json: AsJson = False,
) -> None:
    """Have a judge say which of two answers is better: pairs for a reward model or DPO, with probabilities.

    Every answer and verdict is kept as it comes; the same command again goes on where it stopped.
    """
    from kleash.models.load import pick_device
    from kleash.rewards.judge import Judge
    from kleash.training import label as labelling
    from kleash.training.drawn import Drawing, draw_pairs
    from kleash.training.interrupt import ended_by_signals, stopped_code
    from kleash.training.toml import with_overrides

    args = with_overrides({}, settings or []) | {"rubric": rubric}
    try:
        with ended_by_signals(), redirect_stdout(sys.stderr) if as_json else nullcontext():
            labelling.check(pairs, out, tie)
            if sampled is not None:
                how = Drawing(model=sampled, tokens=tokens, temperature=temperature, seed=seed, chat=chat)
                pairs = draw_pairs(pairs, out, how, labelling.now_and_then(_tell, "prompts answered twice"))
            who = Judge.load(judge, args, str(pick_device("auto")))
            progress = labelling.now_and_then(_tell, "questions answered")
            found = labelling.label(pairs, who, out, tie=tie, progress=progress)
    except KeyboardInterrupt as stop:
        with suppress(OSError):
            typer.echo("stopped; the verdicts so far are kept, and the same command goes on from them", err=True)
        raise typer.Exit(stopped_code(stop)) from None
    say(as_json, found.plain(), "\n".join(found.lines()))


def _tell(said: str) -> None:
    typer.echo(said, err=True)
