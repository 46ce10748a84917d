"""PPO-ptx: a language-model loss on ordinary text, added to each update, so that the policy forgets less of it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from pydantic import ConfigDict
from torch import Tensor

from kleash.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ptx:
    """texts: a file, directory or data set, as for prompts. weight: γ. per_update: texts that each update draws.

    column: of the text, where a row is a table. max_tokens: a text's tokens after these are left out.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    texts: str
    weight: float
    per_update: int = 8
    max_tokens: int = 512
    column: str = "text"

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise UsageError(f"algorithm.ptx.weight = {self.weight} must be above 0 (27.8 is InstructGPT's)")
        if self.per_update < 1:
            raise UsageError(f"algorithm.ptx.per_update = {self.per_update} must be at least 1")
        if self.max_tokens < 2:
            raise UsageError(
                f"algorithm.ptx.max_tokens = {self.max_tokens} must be at least 2: the first token of a text predicts, "
                "and is not predicted"
            )

    def loss(self, logprobs: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], *, tokens: int) -> Float[Tensor, ""]:
        """−Σ log π / tokens, in nats per token, without the weight; `tokens` are the update's, so that passes add up.

        Source: Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155 eq. 2.
        Proved by: tests/training/test_ptx.py::test_gradient_equals_float64_autograd
        """
        return -torch.where(mask, logprobs, 0.0).sum() / tokens
