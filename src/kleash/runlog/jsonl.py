"""Appending events to a file and reading them back, whenever the writer was killed.

A record is one line, written and handed to the operating system at once: a killed process loses at most the record it
was writing. (A machine that loses power may lose the last seconds; a checkpoint does not depend on them.)
"""

import json
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from kleash.errors import RunError
from kleash.runlog.schema import Event, from_json, to_json


class Writer:
    """Appends events to a file, alone. Opening one mends a last line that an earlier writer did not finish.

    Raises:
        RunError: the file cannot be written, or another process is writing it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the writer is)
            _lock(self._file)
            self._mend()
        except BlockingIOError:
            self._file.close()
            raise RunError(f"another process is writing {path}: that run is still going on; end it first") from None
        except OSError as error:
            raise RunError(f"cannot write the run log {path}: {error.strerror or error}") from error

    def write(self, event: Event) -> None:
        """Appends one event, wholly or not at all.

        Raises:
            RunError: the file cannot be written (disk full, …); it then ends with the record before.
        """
        line = to_json(event).encode() + b"\n"
        end = self._file.seek(0, 2)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(end)
            raise RunError(f"cannot write to the run log {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _mend(self) -> None:
        content = self.path.read_bytes()
        start = content.rfind(b"\n") + 1
        if start == len(content):
            return
        if is_whole(content[start:]):
            self._file.write(b"\n")
        else:
            self._file.truncate(start)


def _lock(file: IO[bytes]) -> None:
    """Ours until it is closed or the process ends, however it ends. Where files cannot be locked, nothing is.

    Raises:
        BlockingIOError: it is another's.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # Windows; file systems without locks
        return


def read(path: Path) -> list[Event]:
    """All events of a file, in order, without a last line that its writer did not finish.

    Raises:
        RunError: the file cannot be read, or a line before the last is damaged (the message has its number).
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunError(f"cannot read the run log {path}: {error.strerror or error}") from error
    unfinished = lines.pop()
    if is_whole(unfinished):
        lines.append(unfinished)
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        try:
            event = from_json(line)
        except RunError as error:
            raise RunError(f"{path}, line {number}: {error}") from error
        if event is not None:
            events.append(event)
    return events


def is_whole(line: bytes) -> bool:
    """Whether a line without its end is a whole record: no proper prefix of a JSON object is JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
