"""Reading text that may be huge, torn, still growing, or no text at all: in pieces, with bounded memory."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kleash.errors import RunError

#: No log's line is longer; what is, is no log. (A line may hold a step's samples.)
LONGEST_LINE = 64_000_000
PIECE = 1 << 20


def open_log(path: Path) -> BinaryIO:
    """Opens for reading.

    Raises:
        RunError: it is not there, not ours to read, or no file: a pipe would be waited for, and can be read once only.
    """
    try:
        file = open(path, "rb", opener=_at_once)  # noqa: SIM115 (whoever asks closes it)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise RunError(f"{path} is no file; write the log into one, and name that")
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has none


def placed_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it begins, line with its end if it has one).

    Raises:
        RunError: the file cannot be read or has a line that no log has.
    """
    at = number = 0
    with open_log(path) as file:
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) >= LONGEST_LINE and not line.endswith(b"\n"):
                raise longer_than_any(path, number)
            yield at, line
            at += len(line)


def longer_than_any(path: Path, number: int) -> RunError:
    return RunError(f"{path}, line {number}, is longer than {LONGEST_LINE // 1_000_000} MB: this is no log")


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(number from 1, line without its end, whether it has an end), so that a torn last line is seen.

    Raises:
        RunError: as `placed_lines`.
    """
    for number, (_, line) in enumerate(placed_lines(path), 1):
        yield number, line.rstrip(b"\r\n"), line.endswith(b"\n")


def looks_binary(path: Path) -> bool:
    """By its first bytes: text has no NUL and is UTF-8."""
    with open_log(path) as file:
        start = file.read(4096)
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 4:
            return True
    return b"\0" in start
