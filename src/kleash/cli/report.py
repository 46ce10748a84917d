"""`kleash report`: a run's page, again; or the page of another trainer's log."""

from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, say


def report(
    run: Annotated[Path, typer.Argument(help="A run's directory, or the log of any trainer.")],
    out: Annotated[Path | None, typer.Option(help="The file to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's report again, from its log; for another trainer's log the page of kleash watch, frozen.

    A foreign log's page is written where you are, as NAME-report.html.
    """
    from kleash.report.which import write

    path = write(run, out)
    say(as_json, {"report": str(path)}, f"wrote {path}")
