"""`kleash export`: a model that can be served, from a run."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kleash.cli.options import AsJson, say


def export(
    source: Annotated[str, typer.Argument(help="A run, runs/x@step-200, a checkpoint, or any model.")],
    into: Annotated[Path, typer.Argument(help="The directory to write; it must not be there yet.")],
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], typer.Option(help="Of the weights.")] = "bfloat16",
    shard: Annotated[str, typer.Option(help="The largest size of one file.")] = "5GB",
    onto: Annotated[
        Literal["trained", "stored"],
        typer.Option(help="Which base, where the adapter was trained over a quantised one: that one, or as stored."),
    ] = "trained",
    drift: Annotated[Path | None, typer.Option(help="card.md of a kleash drift, for the model card.")] = None,
    push: Annotated[str | None, typer.Option(help="Also to the hub: owner/name, private where it is new.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model that anything can load: adapter merged, cast, in shards, with a card; read back and compared."""
    from kleash.training import export as exporting

    made = exporting.export(source, into, dtype=dtype, shard=shard, onto=onto, drift=drift)
    address = None if push is None else exporting.push(made.path, push)
    told = {
        "model": str(made.path),
        "kl": made.difference.kl,
        "largest": made.difference.largest,
        "tokens": made.difference.tokens,
        "moved": made.difference.moved,
        "hub": address,
    }
    lines = [
        f"model  {made.path}",
        *([] if made.over is None else [f"base   {exporting.onto_words(made.over, made.difference)}"]),
        f"{'same' if made.difference.moved is None else 'moved':<7}{exporting.words(made.difference)}",
        *([] if address is None else [f"hub    {address}"]),
    ]
    say(as_json, told, "\n".join(lines))
