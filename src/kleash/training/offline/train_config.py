"""[train] of a run on rows that are there already: how long, how much a step, and how each update moves."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from kleash.errors import UsageError
from kleash.training.section import STRICT

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineTrain:
    """[train]: how long, how much a step, and how each update moves.

    epochs: how often all rows are gone through; steps instead of it: so many updates. batch_size: rows (pairs) of an
    update. learning_rate: left out, the verb's own. decay: of the learning rate to 0 over the run. groups_per_pass:
    rows (pairs) that go through the model together; left out, the planner's choice. checkpoint_every, keep: as in an
    online run; evaluate_every: left out, at every checkpoint.
    """

    __pydantic_config__ = STRICT

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 16
    groups_per_pass: int | None = None
    learning_rate: float | None = None
    decay: Decay = "cosine"
    warmup_updates: int = 5
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    checkpoint_every: int = 50
    keep: int | Literal["all"] = 3
    evaluate_every: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise UsageError(f"train.epochs = {self.epochs} and train.steps = {self.steps} say the same; keep one")
        for name in ("epochs", "steps", "batch_size", "groups_per_pass", "checkpoint_every", "evaluate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"train.{name} = {value} must be at least 1")
        if self.keep != "all" and self.keep < 1:
            raise UsageError(f'train.keep = {self.keep} must be at least 1, or "all"')
        if self.learning_rate is not None and self.learning_rate <= 0:
            raise UsageError(f"train.learning_rate = {self.learning_rate} must be above 0")
        if self.max_grad_norm <= 0:
            raise UsageError(f"train.max_grad_norm = {self.max_grad_norm} must be above 0")
        for name in ("warmup_updates", "weight_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be at least 0")
        if not all(0 <= b < 1 for b in self.adam_betas):
            raise UsageError(f"train.adam_betas = {list(self.adam_betas)} must each be at least 0 and below 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"train.seed = {self.seed} must be at least 0 and below 2^63")
        every, saved = self.evaluate_every, self.checkpoint_every
        if every is not None and every % saved and saved % every:
            raise UsageError(
                f"train.evaluate_every = {every} must be a multiple or a divisor of train.checkpoint_every = {saved}: "
                "the best checkpoint is chosen among those that were evaluated"
            )

    def updates(self, rows: int) -> int:
        """How many updates a run on so many rows takes; what does not fill a batch is left to the next epoch's shuffle.

        Raises:
            UsageError: an update takes more rows than there are.
        """
        if self.batch_size > rows:
            raise UsageError(f"train.batch_size = {self.batch_size} exceeds the {rows} rows there are")
        return self.steps if self.steps is not None else (self.epochs or 1) * (rows // self.batch_size)

    def rate(self, peak: float, step: int, total: int) -> float:
        """The learning rate of an update: a linear warm-up to `peak`, then the decay over what is left."""
        if step < self.warmup_updates:
            return peak * (step + 1) / (self.warmup_updates + 1)
        done = (step - self.warmup_updates) / max(1, total - self.warmup_updates)
        match self.decay:
            case "linear":
                return peak * (1 - done)
            case "cosine":
                return peak * (1 + math.cos(math.pi * done)) / 2
            case _:
                return peak

    def optimizer(self, trained: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(trained, lr=rate, betas=self.adam_betas, weight_decay=self.weight_decay, fused=True)
