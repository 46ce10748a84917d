"""One watched log: what was read, and what the monitor says of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kleash.monitor import Examination, Watched
from kleash.monitor.engine import Verdict
from kleash.records import Target
from kleash.runlog.findings import Finding
from kleash.runlog.series import Column, TrainLog

EXIT = {"healthy": 0, "findings": 1, "not evaluated": 2}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Case:
    """A training log and what the monitor says of it. Printed, it is what `kleash watch` prints.

    path: as the user gave it. said: verdict, findings, the last clean checkpoint. budget: a ceiling on the KL that
    the user named.
    """

    path: Path
    log: TrainLog
    said: Examination
    budget: Target | None = None

    @property
    def verdict(self) -> Verdict:
        return self.said.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The gravest first."""
        return self.said.findings

    def __repr__(self) -> str:
        from kleash.report.watch.terminal import block

        return block(self).plain

    def _repr_html_(self) -> str:
        from kleash.report.watch.page import view

        return view(self)

    @property
    def exit_code(self) -> int:
        return EXIT[self.said.verdict]

    @property
    def name(self) -> str:
        return self.path.name or str(self.path.resolve())

    @property
    def grave(self) -> list[Finding]:
        """Warnings and alarms; notes aside."""
        return [finding for finding in self.said.findings if finding.severity != "note"]

    @property
    def base(self) -> str:
        """The model that the run began from, where its settings tell."""
        model = self.log.config.get("model")
        named = model.get("policy") if isinstance(model, Mapping) else None
        return named if isinstance(named, str) else "BASE"

    def finite(self, name: str) -> Column | None:
        """A column's numbers without the rows that have none."""
        found = self.log.column(name)
        return None if found is None else found[np.isfinite(found)]


def look(path: Path, *, columns: Mapping[str, str] | None = None, budget: Target | None = None) -> Case:
    """Reads the log and has it judged.

    Raises:
        RunError: there is no log, or none that can be read.
        UsageError: `columns` names what does not exist.
    """
    return again(path, columns=columns, budget=budget)()


def again(path: Path, *, columns: Mapping[str, str] | None = None, budget: Target | None = None) -> Callable[[], Case]:
    """The same, to be called as often as the log has grown."""
    watched = Watched(path, columns=columns, budget=budget)

    def looked() -> Case:
        log, said = watched.look()
        return Case(path=path, log=log, said=said, budget=budget)

    return looked
