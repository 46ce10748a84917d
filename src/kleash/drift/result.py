"""An audit in a Python session: its records, and what it looks like there."""

from dataclasses import dataclass
from pathlib import Path

from kleash.drift.files import write_files
from kleash.drift.records import Audit, Interval, Verdict
from kleash.report.drift import words
from kleash.report.drift.page import view
from kleash.report.drift.terminal import block


@dataclass(frozen=True, slots=True, repr=False)
class Drift:
    """How far a model moved from its base, and whether it was worth it. Printed, it is what `kleash drift` prints.

    audit: all that was measured, as drift.json holds it.
    """

    audit: Audit

    @property
    def verdict(self) -> Verdict:
        return self.audit.judgement.verdict

    @property
    def kl(self) -> Interval | None:
        """The KL that is quoted first, nats per token: off the task, KL(base‖tuned), where both were measured."""
        quoted = words.first_kl(self.audit)
        return None if quoted is None else quoted[2]

    @property
    def passed(self) -> bool | None:
        """Whether every gate was passed; None if one could not be judged. Without gates True."""
        return {0: True, 1: False, 2: None}[words.exit_code(self.audit)]

    def save(self, directory: str | Path) -> list[Path]:
        """Writes drift.html, drift.json, card.md and badge.svg.

        Raises:
            RunError: they cannot be written.
        """
        return write_files(self.audit, Path(directory))

    def __repr__(self) -> str:
        return block(self.audit).plain

    def _repr_html_(self) -> str:
        return view(self.audit)
