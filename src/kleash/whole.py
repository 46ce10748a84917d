"""Files that appear whole or not at all, whoever else writes the same one. Standard library only."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: How a draft's name ends. One that is found was left by a process that was killed.
DRAFT = ".part"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft beside `path`, to be written meanwhile, which then takes its name; after an error it is gone.

    Each draft has a name of its own: with one for all, a second writer would rename the half file of the first.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}{DRAFT}")
    try:
        yield draft
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str, errors: str = "strict") -> Path:
    """Writes a text file as UTF-8."""
    with whole(path) as draft:
        draft.write_text(text, encoding="utf-8", errors=errors)
    return path
