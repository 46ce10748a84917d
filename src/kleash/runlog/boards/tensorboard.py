"""TensorBoard's event files in the run's directory, by tensorboardX: its writer, without the rest of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.runlog.findings import Finding, told

FOLDER = "tensorboard"


@dataclass(slots=True)
class TensorBoard:
    """folder: of the event files. writer: a SummaryWriter."""

    folder: Path
    writer: Any

    takes_back = True

    @classmethod
    def opened(cls, run_dir: Path, *, project: str, identity: str, config: Mapping[str, Any]) -> "TensorBoard":
        """A folder is a run there: it has no project and no identity."""
        folder = run_dir / FOLDER
        return cls(folder, _writer(folder))

    def write(self, step: int, named: Mapping[str, float]) -> None:
        for name, number in named.items():
            self.writer.add_scalar(name, number, step)
        self.writer.flush()

    def void(self, step: int) -> None:
        """A new file whose beginning says that earlier files' steps from this one on do not count."""
        self.writer.close()
        self.writer = _writer(self.folder, step)
        self.writer.flush()

    def alert(self, step: int, finding: Finding) -> None:
        self.writer.add_text(f"finding/{finding.rule.replace(' ', '_')}", told(finding), step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def _writer(folder: Path, purge: int | None = None) -> Any:
    """Of a new file beside those that are there: by itself it would write over one of the same second."""
    from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

    number = len([*folder.iterdir()]) if folder.is_dir() else 0
    return SummaryWriter(str(folder), purge_step=purge, filename_suffix=f".{number}")
