"""A file that is read again and again while it grows: each time only the lines that are new."""

from collections.abc import Iterator
from pathlib import Path

from kleash.runlog.importers.files import LONGEST_LINE, longer_than_any, open_log
from kleash.runlog.jsonl import is_whole

#: So many of the bytes before the place reached tell whether the file is still the one that was read.
WITNESS = 256


class Growing:
    """at: the bytes read so far. number: lines read so far. torn: whether a last line without its end is left out.

    A last line without its end counts once it is whole, for no proper prefix of a JSON object is JSON.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        """From the file's start."""
        self.at = self.number = 0
        self.torn = self._open_ended = False
        self._witness = b""

    @property
    def is_another(self) -> bool:
        """Whether what was read is no longer there: the file was replaced, cut short or written anew.

        Raises:
            RunError: it cannot be read.
        """
        with open_log(self.path) as file:
            file.seek(self.at - len(self._witness))
            return file.read(len(self._witness)) != self._witness

    def new(self) -> Iterator[tuple[int, bytes]]:
        """(where it begins, line without its end) of each line since the last time.

        Raises:
            RunError: the file cannot be read or has a line that no log has.
        """
        self.torn = False
        with open_log(self.path) as file:
            file.seek(self.at)
            while line := file.readline(LONGEST_LINE):
                at, ended = self.at, line.endswith(b"\n")
                if not ended and len(line) >= LONGEST_LINE:
                    raise longer_than_any(self.path, self.number + 1)
                if not ended and not is_whole(line):
                    self.torn = bool(line.strip())
                    return
                closes = self._open_ended and line == b"\n"  # of the line before, which had none
                self.at, self._open_ended = at + len(line), not ended
                self._witness = (self._witness + line)[-WITNESS:]
                if not closes:
                    self.number += 1
                    yield at, line.rstrip(b"\r\n")
