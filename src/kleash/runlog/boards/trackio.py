"""trackio's local database: $TRACKIO_DIR, or where its dashboard looks by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.runlog.findings import LEVELS, Finding, told


@dataclass(frozen=True, slots=True)
class Trackio:
    """run: trackio's."""

    run: Any

    takes_back = False

    @classmethod
    def opened(cls, run_dir: Path, *, project: str, identity: str, config: Mapping[str, Any]) -> "Trackio":
        import trackio  # pyright: ignore[reportMissingImports]

        run = trackio.init(
            project=project,
            name=f"{run_dir.resolve().name}-{identity}",
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        return cls(run)

    def write(self, step: int, named: Mapping[str, float]) -> None:
        self.run.log(dict(named), step=step)

    def void(self, step: int) -> None:
        """It takes nothing back: the last value of a step counts."""

    def alert(self, step: int, finding: Finding) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        level = trackio.AlertLevel(LEVELS[finding.severity])
        self.run.alert(title=finding.headline, text=told(finding), level=level)

    def close(self) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        trackio.finish()
