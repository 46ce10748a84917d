"""A log that is looked at again and again: a look costs what is new since the last."""

from collections.abc import Mapping
from pathlib import Path

from kleash.monitor.engine import Examination, examine
from kleash.monitor.view import Measured
from kleash.records import Target
from kleash.runlog.findings import Found
from kleash.runlog.importers import Again
from kleash.runlog.series import TrainLog


class Watched:
    """One log. columns, budget: as of `read_log` and `examine`.

    What it remembers is what the log says, so that a look says the same as one by somebody who comes anew.
    """

    def __init__(self, path: Path, *, columns: Mapping[str, str] | None = None, budget: Target | None = None) -> None:
        self._again, self._budget = Again(path, columns), budget
        self._measured: Measured = {}

    def look(self) -> tuple[TrainLog, Examination]:
        """
        Raises:
            RunError: there is no log, or none that can be read.
            UsageError: `columns` names what does not exist.
        """
        log = self._again.read()
        return log, examine(log, budget=self._budget, measured=self._measured)

    @property
    def found(self) -> list[Found]:
        """What a log of ours says was found while the run went on."""
        return self._again.found
