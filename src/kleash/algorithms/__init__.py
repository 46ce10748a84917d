"""The online algorithms, a page each. Adding one is one file and one line here."""

from typing import Protocol, runtime_checkable

from kleash.algorithms.group_relative import Loss, Totals
from kleash.algorithms.grpo import GRPO
from kleash.algorithms.rloo import RLOO
from kleash.kl.penalties import Penalty
from kleash.tensors import Batch, Look


@runtime_checkable
class Algorithm(Protocol):
    """A frozen dataclass, which is its config, with a loss."""

    @property
    def group_size(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def minibatches(self) -> int: ...
    @property
    def label(self) -> str:
        """What the expected gradient is, in words."""
        ...

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss: ...


ALGORITHMS: dict[str, type] = {"grpo": GRPO, "rloo": RLOO}

__all__ = ["ALGORITHMS", "GRPO", "RLOO", "Algorithm", "Loss", "Totals"]
