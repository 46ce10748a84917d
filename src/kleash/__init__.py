"""kleash: reinforcement-learning fine-tuning of language models on a leash."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kleash.training.api import Run, train

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """`kleash.train` and `kleash.Run` on first use, so that `import kleash` loads no torch."""
    if name in ("train", "Run"):
        from kleash.training import api

        return getattr(api, name)
    raise AttributeError(f"module 'kleash' has no attribute {name!r}")
