"""What judges said, kept on disk: SQLite with a write-ahead log, one transaction a verdict.

A process that is killed loses no verdict that it was given, and two processes may use one file at once. The file holds
hashes of questions, verdicts and token counts; neither texts nor keys.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.errors import RunError, UsageError
from kleash.rewards.judge.answers import Said
from kleash.rewards.judge.questions import Question

#: Part of every key: what a question or an answer looks like, in this version.
FORM = 1
#: Seconds to wait for another process that is writing.
PATIENCE = 60.0


@dataclass(frozen=True)
class Cache:
    """An open file. Any thread may use it; one at a time does."""

    path: Path
    connection: sqlite3.Connection
    lock: threading.Lock

    @classmethod
    def open(cls, path: Path) -> "Cache":
        """The file, made where there is none.

        Raises:
            UsageError: it cannot be opened, or is something else.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS said (key TEXT PRIMARY KEY, answer TEXT NOT NULL) STRICT")
        except (sqlite3.Error, OSError) as error:
            raise UsageError(
                f"the judge's cache {path} cannot be used: {error}; name another file with cache, or move it away"
            ) from None
        return cls(path, connection, threading.Lock())

    def find(self, keys: Sequence[str]) -> dict[str, Said]:
        """The answers that are there, by key."""
        found: dict[str, Said] = {}
        with self._careful():
            for first in range(0, len(keys), 500):
                part = keys[first : first + 500]
                marks = ", ".join("?" * len(part))
                rows = self.connection.execute(f"SELECT key, answer FROM said WHERE key IN ({marks})", part)
                found |= {key: Said(**json.loads(answer)) for key, answer in rows}
        return found

    def keep(self, key: str, said: Said) -> None:
        """In a transaction of its own. The first answer stands, where two processes asked the same."""
        answer = json.dumps({name: value for name, value in said._asdict().items() if value is not None})
        with self._careful():
            self.connection.execute("INSERT OR IGNORE INTO said VALUES (?, ?)", (key, answer))

    @contextmanager
    def _careful(self) -> Iterator[None]:
        try:
            with self.lock:
                yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise RunError(f"the judge's cache {self.path} failed: {error}; move it away to begin a new one") from None


def key_of(identity: dict[str, Any], question: Question) -> str:
    """sha256 of who is asked, and of all that is asked: rubric, prompt, answers, their order, settings."""
    whole = [FORM, identity, question.words, question.text, question.sample]
    text = json.dumps(whole, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
