"""Telling somebody else of a finding, once: a webhook, a command, trackio's own table of alerts.

What fails is said and never stops the watching. One thread does the telling, so that a slow receiver delays no look.
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from kleash.errors import UsageError
from kleash.report.watch.case import Case
from kleash.report.watch.told import of_finding
from kleash.runlog.findings import Finding
from kleash.runlog.findings import told as in_words

PATIENCE_S = 20.0


@runtime_checkable
class Channel(Protocol):
    """One way to tell. name: for saying that it failed, without any secret of its address."""

    @property
    def name(self) -> str: ...

    def tell(self, case: Case, finding: Finding) -> None:
        """
        Raises:
            OSError, ValueError, subprocess.SubprocessError, sqlite3.Error: it could not be told.
        """
        ...


@dataclass(frozen=True, slots=True)
class Webhook:
    """POST of JSON: the message as `text` and as `content` (what chat services look for), and the finding whole."""

    url: str

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--alert {self.url!r} is no address: give https://…, or trackio for its own alerts")

    @property
    def name(self) -> str:
        return f"the webhook at {urlsplit(self.url).hostname}"

    def tell(self, case: Case, finding: Finding) -> None:
        text = message(case, finding)
        body = json.dumps({"text": text, "content": text, "finding": told(case, finding)}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE_S):
            pass


@dataclass(frozen=True, slots=True)
class Command:
    """The user's own command, by the shell. The finding comes as JSON on its standard input and in its environment,
    never inside the command line: what a model wrote is data."""

    line: str

    @property
    def name(self) -> str:
        return f"the command {self.line!r}"

    def tell(self, case: Case, finding: Finding) -> None:
        told_of = told(case, finding)
        environment = {
            f"KLEASH_{key.upper()}": str(value).replace("\0", "")
            for key, value in told_of.items()
            if isinstance(value, str | int)
        }
        subprocess.run(
            self.line,
            shell=True,
            check=True,
            timeout=PATIENCE_S,
            input=json.dumps(told_of),
            text=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | environment,
        )


class Alerts:
    """Each finding from a warning on to each channel, once as long as this process lives.

    say: what to do with the sentence of a failure.
    """

    def __init__(self, channels: list[Channel], say: Callable[[str], None]) -> None:
        self.channels, self._say = channels, say
        self._told: set[tuple[str, str, int]] = set()
        self._worker = ThreadPoolExecutor(max_workers=1)

    def tell(self, case: Case) -> None:
        for finding in case.grave:
            key = (str(case.path), finding.rule, finding.alarm_step)
            if key not in self._told:
                self._told.add(key)
                for channel in self.channels:
                    self._worker.submit(self._try, channel, case, finding)

    def close(self) -> None:
        """Waits for what is being told."""
        self._worker.shutdown()

    def _try(self, channel: Channel, case: Case, finding: Finding) -> None:
        try:
            channel.tell(case, finding)
        except Exception as error:  # whatever a receiver does, the watching goes on
            self._say(f"{channel.name} was not told of “{finding.rule}”: {reason(error)}")


def told(case: Case, finding: Finding) -> dict[str, Any]:
    return {"path": str(case.path), "run": case.log.label, "message": message(case, finding)} | of_finding(finding)


def message(case: Case, finding: Finding) -> str:
    return f"kleash watch {case.path}: {finding.severity}: {finding.headline}. {in_words(finding)}"


def reason(error: Exception) -> str:
    """Without the address or the command, which may hold a secret."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"it ended with code {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"it took longer than {PATIENCE_S:g} s"
    return f"{type(error).__name__}: {str(error)[:200]}"
