"""kleash: reinforcement-learning fine-tuning of language models on a leash."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kleash.drift.facade import audit
    from kleash.training.api import Run, train
    from kleash.training.offline.api import OfflineRun, RewardRuns, dpo, reward_model, sft

__version__ = "0.1.0"
__all__ = ["OfflineRun", "RewardRuns", "Run", "__version__", "audit", "dpo", "reward_model", "sft", "train"]

#: What is loaded on first use, so that `import kleash` loads no torch.
_LAZY = {
    "Run": "kleash.training.api",
    "train": "kleash.training.api",
    "OfflineRun": "kleash.training.offline.api",
    "RewardRuns": "kleash.training.offline.api",
    "dpo": "kleash.training.offline.api",
    "reward_model": "kleash.training.offline.api",
    "audit": "kleash.drift.facade",
    "sft": "kleash.training.offline.api",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kleash' has no attribute {name!r}")
