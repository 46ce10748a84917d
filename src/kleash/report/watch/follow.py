"""Looking at a log again whenever its files change: grown, rotated, cut short or replaced.

Only reads, holds no lock and keeps no file open: any number of processes may follow the same run.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kleash.errors import RunError
from kleash.report.watch.case import Case

#: How deep under a directory files belong to its log: outputs/runs/DATE/events…, wandb/offline-run-…/files/….
DEPTH = 3
#: A look may take at most this share of the time: a long log is read less often.
SHARE = 0.5
Signature = tuple[tuple[str, int, int, int], ...]


class Follower:
    """The newest look at one log. case: the last that succeeded. trouble: why the newest did not.

    again: makes what looks at a path as often as it is called (`case.again`).
    """

    def __init__(self, path: Path, again: Callable[[Path], Callable[[], Case]]) -> None:
        self.path, self._look = path, again(path)
        self.case: Case | None = None
        self.trouble: str | None = None
        self._seen: Signature | None = None
        self._not_before = 0.0

    def poll(self) -> bool:
        """Looks if anything changed; whether there is something new to show."""
        now = time.monotonic()
        if now < self._not_before:
            return False
        seen = signature(self.path)
        if seen == self._seen:
            return False
        self._seen, before = seen, self.trouble
        try:
            self.case, self.trouble = self._look(), None
        except RunError as error:
            self.trouble = str(error)
        self._not_before = time.monotonic() + (time.monotonic() - now) * (1 / SHARE - 1)
        return self.trouble is None or self.trouble != before


def signature(path: Path) -> Signature:
    """Name, size, time and number of each file that may belong to the log; whatever happens to them shows here."""
    return tuple(sorted(_stats(path)))


def _stats(path: Path) -> Iterator[tuple[str, int, int, int]]:
    near = path.parent if path.name == "events.jsonl" else path
    files = _files(near, DEPTH) if near.is_dir() else iter([str(near), f"{near}-wal"])
    for name in files:
        try:
            found = os.stat(name)
        except OSError:
            continue  # gone between listing and looking
        yield name, found.st_size, found.st_mtime_ns, found.st_ino


def _files(folder: str | Path, depth: int) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth > 0:
                yield from _files(entry.path, depth - 1)
        else:
            yield entry.path
