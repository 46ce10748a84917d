"""`kleash check`: which KL a config charges, where, with what true gradient and price, and what it falls into."""

from pathlib import Path

from kleash.check.libraries import LIBRARIES
from kleash.check.read import read_config
from kleash.check.records import Checked, Number
from kleash.errors import UsageError

__all__ = ["check"]


def check(
    path: Path | str,
    overrides: list[str] | None = None,
    *,
    version: str | None = None,
    method: str | None = None,
    tokens: Number | None = None,
) -> list[Checked]:
    """Every run that a config sets up, judged. Nothing of it is run or imported.

    version: of the library whose defaults count. method: where the file does not tell its trainer. tokens: of an
    answer.

    Raises:
        UsageError: the file cannot be read, or is no training config that this knows.
    """
    if tokens is not None and not tokens > 0:
        raise UsageError(f"an answer has more than {tokens:g} tokens: --tokens and --length must be above 0")
    return [
        LIBRARIES[given.library](given, tokens) for given in read_config(Path(path), overrides or [], version, method)
    ]
