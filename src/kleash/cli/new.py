"""`kleash new`: a starting config on standard output."""

from typing import Annotated, Literal

import typer


def new(
    kind: Annotated[Literal["grpo", "ppo", "dpo", "rlaif"], typer.Argument(help="What kind of run.")],
    model: Annotated[str | None, typer.Option(help="Your model: a directory, a hub id, kleash:smollm2.")] = None,
    data: Annotated[str | None, typer.Option(help="Prompts; for dpo the pairs.")] = None,
    held_out: Annotated[str | None, typer.Option(help="Rows that are never trained on.")] = None,
    reward: Annotated[str | None, typer.Option(help="./reward.py:function, model:./rm; for rlaif the judge.")] = None,
    rubric: Annotated[str | None, typer.Option(help="For rlaif: what is better, or the .md file that says it.")] = None,
    out: Annotated[str | None, typer.Option(help="The run's directory.")] = None,
) -> None:
    """Print a commented config to start from, with values for your model and machine: kleash new grpo > run.toml

    What the values are based on goes to standard error. No weights are loaded.
    """
    from kleash.training.starter import Wishes
    from kleash.training.starting import new as begin

    wishes = Wishes(kind=kind, model=model, data=data, held_out=held_out, reward=reward, rubric=rubric, out=out)
    text, lines = begin(wishes)
    for line in lines:
        typer.echo(line, err=True)
    typer.echo(text, nl=False)
