"""[train]: how long, how much a step, and how each update moves."""

from dataclasses import dataclass
from typing import Literal

from kleash.errors import UsageError
from kleash.rl.mismatch import Mismatch
from kleash.training.section import STRICT

#: Of a critic's bias, in units of reward. At the weights' rate the values could follow the mean return only by growing
#: along the states' common direction, which makes them differ from token to token by more than the returns do.
BIAS_RATE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """[train]: how long, how much a step, and how each update moves.

    learning_rate: left out, 1e-5 for full fine-tuning and 1e-4 for an adapter. critic_bias_rate: that of the value
    head's bias, about the reward by which an update moves it; left out, BIAS_RATE. groups_per_pass: prompt groups that
    go through the model together; left out, all of them. checkpoint_every: steps between checkpoints. keep: how many
    of the newest stay, beside the best, the last good one and those that other runs started from; or "all".
    evaluate_every: steps between evaluations on data.held_out; left out, at every checkpoint. evaluate_samples: of
    each held-out prompt, or "greedy". mismatch: how the reward's credit is corrected for a sampler that is not the
    policy, such as an engine of the user's own; left out, it is not.
    """

    __pydantic_config__ = STRICT

    steps: int = 300
    prompts_per_step: int = 8
    groups_per_pass: int | None = None
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    learning_rate: float | None = None
    critic_bias_rate: float | None = None
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_updates: int = 5
    max_grad_norm: float = 1.0
    checkpoint_every: int = 50
    keep: int | Literal["all"] = 3
    evaluate_every: int | None = None
    evaluate_samples: int | Literal["greedy"] = 1
    mismatch: Mismatch | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one = ("steps", "prompts_per_step", "max_new_tokens", "checkpoint_every")
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be at least 1")
        if self.keep != "all" and self.keep < 1:
            raise UsageError(f'train.keep = {self.keep} must be at least 1, or "all"')
        if self.groups_per_pass is not None and self.groups_per_pass < 1:
            raise UsageError(f"train.groups_per_pass = {self.groups_per_pass} must be at least 1")
        self._check_evaluation()
        for name in ("learning_rate", "critic_bias_rate"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be above 0")
        if self.max_grad_norm <= 0:
            raise UsageError(f"train.max_grad_norm = {self.max_grad_norm} must be above 0")
        for name in ("warmup_updates", "weight_decay"):
            if getattr(self, name) < 0:
                raise UsageError(f"train.{name} = {getattr(self, name)} must be at least 0")
        if not all(0 <= b < 1 for b in self.adam_betas):
            raise UsageError(f"train.adam_betas = {list(self.adam_betas)} must each be at least 0 and below 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"train.seed = {self.seed} must be at least 0 and below 2^63")

    def _check_evaluation(self) -> None:
        if self.evaluate_samples != "greedy" and self.evaluate_samples < 1:
            raise UsageError(f'train.evaluate_samples = {self.evaluate_samples} must be at least 1, or "greedy"')
        every, saved = self.evaluate_every, self.checkpoint_every
        if every is not None and (every < 1 or (every % saved and saved % every)):
            raise UsageError(
                f"train.evaluate_every = {every} must be a multiple or a divisor of train.checkpoint_every = {saved}: "
                "the best checkpoint is chosen among those that were evaluated"
            )
