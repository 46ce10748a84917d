"""Weights & Biases, online or with WANDB_MODE=offline, in the run's own directory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.runlog.findings import LEVELS, Finding, told


@dataclass(frozen=True, slots=True)
class WandB:
    """run: wandb's."""

    run: Any

    takes_back = False

    @classmethod
    def opened(cls, run_dir: Path, *, project: str, identity: str, config: Mapping[str, Any]) -> "WandB":
        import wandb  # pyright: ignore[reportMissingImports]

        run = wandb.init(
            project=project,
            name=run_dir.resolve().name,
            id=identity,
            resume="allow",
            dir=str(run_dir),
            config=dict(config),
            settings=wandb.Settings(console="off"),  # else it takes the terminal that the live view draws on
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return cls(run)

    def write(self, step: int, named: Mapping[str, float]) -> None:
        """Its own count only rises, also where a run goes back; the axis is our `step`."""
        self.run.log({"step": step, **named}, step=max(step, self.run.step), commit=True)

    def void(self, step: int) -> None:
        """It takes nothing back: the last value of a step counts."""

    def alert(self, step: int, finding: Finding) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        level = wandb.AlertLevel(LEVELS[finding.severity].upper())
        self.run.alert(title=finding.headline, text=told(finding), level=level, wait_duration=0)

    def close(self) -> None:
        self.run.finish()
