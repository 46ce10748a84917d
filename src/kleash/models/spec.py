"""What is said of a model in a config: which one, how trained, against which reference, how asked. Loads no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from kleash.errors import UsageError
from kleash.models.following import FollowingConfig

DType = Literal["float32", "bfloat16"]
Bits = Literal["4bit", "8bit"]
CriticKind = Literal["head", "separate"]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: the base stays frozen, W + (alpha / rank)·B·A is trained.

    `alpha` None means alpha = rank: a scale of exactly 1, so that changing the rank does not also change the size of
    an update, and a learning rate found at one rank is a fair start at another. `targets` is "all-linear" (every
    linear layer but the head) or the names of the layers, as peft knows them.

    dora: the length of each row of a weight is trained apart from its direction (Liu et al. 2024, arXiv 2402.09353).
    rslora: the scale is alpha / √rank (Kalajdzievski 2023, arXiv 2312.03732).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    rank: int = 16
    alpha: float | None = None
    targets: Literal["all-linear"] | list[str] = "all-linear"
    dora: bool = False
    rslora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"model.adapter.rank must be at least 1, not {self.rank}")
        if self.alpha is not None and self.alpha <= 0:
            raise UsageError(f"model.adapter.alpha must be positive, not {self.alpha}")
        if not self.targets:
            raise UsageError('model.adapter.targets is empty; name layers, or use "all-linear"')


@dataclass(frozen=True, slots=True)
class WeightedReference:
    """One of several references: model is as `reference` would name it alone; the weights add up to 1."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    weight: float

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise UsageError('model.reference: a model is empty; give "start", "base", or a model')
        if self.weight <= 0:
            raise UsageError(f"model.reference: the weight {self.weight} of {self.model} must be above 0")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which policy, against which reference, in which precision, where.

    policy: a directory (a full model or a peft adapter), a hub id, `kleash:tiny`, `kleash:smollm2`, or a step of a
        run, "runs/x@step-200".
    reference: "start" (the policy as loaded, its adapter included), "base" (the adapter switched off), or anything
        that `policy` may be; or several of these with weights.
    reference_dtype: left out, the policy's own precision, for a KL of exactly 0 at the start.
    reference_update: whether the reference follows the policy, and how (kleash.models.following).
    adapter: leave out to train all weights; a policy that is itself an adapter trains that adapter.
    quantize: under an adapter, the base's linear layers are kept in 4 bits (NF4) or 8; the reference is that base too.
        A policy that is an adapter trained so is loaded so.
    critic: for algorithms with a value function: "head" puts it on the policy's own states, "separate" on those of a
        second body that starts as a copy of the policy's. Left out: "head" where one is needed.
    dtype: "bfloat16" computes in bf16 over fp32 master weights; with an adapter the frozen base is stored in bf16.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    policy: str
    reference: str | tuple[WeightedReference, ...] = "start"
    reference_dtype: DType | None = None
    reference_update: FollowingConfig | None = None
    adapter: Adapter | None = None
    quantize: Bits | None = None
    critic: CriticKind | None = None
    dtype: DType = "float32"
    device: str = "auto"
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not self.policy.strip():
            raise UsageError("model.policy is empty; give a directory, a hub id, kleash:tiny or kleash:smollm2")
        if isinstance(self.reference, str) and not self.reference.strip():
            raise UsageError('model.reference is empty; give "start", "base", or a model')
        if not isinstance(self.reference, str):
            _check_several(self.reference)
        if self.reference_update is not None and not isinstance(self.reference, str):
            raise UsageError("model.reference_update moves one reference, and model.reference names several; keep one")
        if self.reference_update is not None and self.reference_dtype is not None:
            raise UsageError(
                "model.reference_update needs a reference in the policy's own precision, whose weights it takes; leave "
                "model.reference_dtype out"
            )

    @property
    def references(self) -> tuple[WeightedReference, ...]:
        """All of them; of one alone the weight is 1."""
        one = self.reference
        return (WeightedReference(one, 1.0),) if isinstance(one, str) else one


def _check_several(references: tuple[WeightedReference, ...]) -> None:
    names = [reference.model for reference in references]
    if len(names) < 2 or len(set(names)) < len(names):
        raise UsageError(f"model.reference = {names}: several references are at least two, each named once")
    total = math.fsum(reference.weight for reference in references)
    if abs(total - 1) > 1e-6:
        raise UsageError(
            f"model.reference: the weights add up to {total:g}, and have to add up to 1; how much the KL counts is beta"
        )


@dataclass(frozen=True, slots=True)
class Chat:
    """What the chat template is told.

    add_generation_prompt: whether it opens the assistant's answer. Without, a prompt ends where its messages end, and
        an assistant's message at the end is gone on with.
    variables: what the template reads besides, such as enable_thinking.
    """

    add_generation_prompt: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
