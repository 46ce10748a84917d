"""`trainer_state.json` of transformers, read in pieces: a torn or huge one gives the rows that are whole."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.files import PIECE, open_log

_DECODER, _BETWEEN = json.JSONDecoder(), re.compile(r"[\s,]*")
#: What stands before the rows is a few settings; a row is some kilobytes.
MOST_HEAD, MOST_ROW = 16_000_000, 16_000_000


class TrainerState:
    """`rows()` goes through log_history; afterwards `settings` has the other fields, `torn` whether the end is missing.

    Raises:
        RunError: not a trainer_state.json.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.settings, self.torn = path, dict[str, Any](), False

    def rows(self) -> Iterator[dict[str, Any]]:
        with open_log(self.path) as file:
            pieces = iter(lambda: file.read(PIECE).decode("utf-8", errors="replace"), "")
            buffer, at = self._head(pieces), 0
            while True:
                at = _BETWEEN.match(buffer, at).end()  # pyright: ignore[reportOptionalMemberAccess]
                if buffer[at : at + 1] == "]":
                    self._settings('{"": 0' + buffer[at + 1 :] + "".join(pieces))
                    return
                try:
                    row, at = _DECODER.raw_decode(buffer, at)
                except ValueError:
                    piece = next(pieces, "")
                    if not piece:
                        self.torn = True
                        return
                    buffer, at = buffer[at:] + piece, 0
                    if len(buffer) > MOST_ROW + PIECE:
                        raise RunError(f"{self.path} has a damaged row in `log_history`") from None
                    continue
                if not isinstance(row, dict):
                    raise RunError(f"{self.path}: `log_history` has a row that is no object")
                yield row

    def _head(self, pieces: Iterator[str]) -> str:
        """Reads up to the first row."""
        buffer, name = "", '"log_history"'
        for piece in pieces:
            buffer += piece
            at = buffer.find(name)
            opened = buffer.find("[", at) if at >= 0 else -1
            if opened >= 0:
                if buffer[at + len(name) : opened].strip() != ":":
                    break
                self._settings(buffer[:at].rstrip().rstrip(",") + "}")
                return buffer[opened + 1 :]
            if len(buffer) > MOST_HEAD:
                break
        what = "is empty" if not buffer.strip() else "has no list `log_history`: this is no trainer_state.json, or torn"
        raise RunError(f"{self.path} {what}")

    def _settings(self, text: str) -> None:
        try:
            found = json.loads(text)
        except ValueError:
            self.torn = True
            return
        if isinstance(found, dict):
            self.settings |= found
