"""`kleash report`: a run's page, again."""

from pathlib import Path
from typing import Annotated

import typer

from kleash.cli.options import AsJson, say


def report(run: Annotated[Path, typer.Argument(help="A run's directory.")], as_json: AsJson = False) -> None:
    """Write a run's report again, from its log."""
    from kleash.report.which import write

    path = write(run)
    say(as_json, {"report": str(path)}, f"wrote {path}")
