"""kleash: reinforcement-learning fine-tuning of language models on a leash."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kleash.drift.facade import audit
    from kleash.drift.result import Drift
    from kleash.report.watch import Case
    from kleash.report.watch import look as watch
    from kleash.training.api import train
    from kleash.training.offline.api import RewardRuns, dpo, reward_model, sft
    from kleash.training.offline.run import OfflineRun, load_run
    from kleash.training.run import Run

__version__ = "0.1.0"
__all__ = [
    "Case",
    "Drift",
    "OfflineRun",
    "RewardRuns",
    "Run",
    "__version__",
    "audit",
    "dpo",
    "load_run",
    "reward_model",
    "sft",
    "train",
    "watch",
]

#: What is loaded on first use, so that `import kleash` loads no torch: where it is, and its name there.
_LAZY = {
    "Case": ("kleash.report.watch", "Case"),
    "Drift": ("kleash.drift.result", "Drift"),
    "OfflineRun": ("kleash.training.offline.run", "OfflineRun"),
    "RewardRuns": ("kleash.training.offline.api", "RewardRuns"),
    "Run": ("kleash.training.run", "Run"),
    "audit": ("kleash.drift.facade", "audit"),
    "dpo": ("kleash.training.offline.api", "dpo"),
    "load_run": ("kleash.training.offline.run", "load_run"),
    "reward_model": ("kleash.training.offline.api", "reward_model"),
    "sft": ("kleash.training.offline.api", "sft"),
    "train": ("kleash.training.api", "train"),
    "watch": ("kleash.report.watch", "look"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        where, there = _LAZY[name]
        return getattr(import_module(where), there)
    raise AttributeError(f"module 'kleash' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
