"""When a reference follows the policy, and how far: laws of the number of steps. Loads no torch."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BeforeValidator, ConfigDict, Field

from kleash.errors import UsageError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


@runtime_checkable
class Following(Protocol):
    """A frozen dataclass, which is its config."""

    @property
    def kind(self) -> str: ...

    def share(self, steps: int, stalled: int) -> float | None:
        """How much of the policy goes into the reference now: reference ← share·policy + (1 − share)·reference.

        Args:
            steps: updated steps of the run so far, at least 1.
            stalled: steps since the score was last better than ever since the reference last moved.

        Returns: None where it does not move.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EMA:
    """Every so many steps a part of the way to the policy.

    Source: Gorbatovski et al. 2024 (TR-DPO, soft update), arXiv 2404.09656.
    Proved by: tests/models/test_moving.py::test_a_move_is_the_weighted_mean
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    rate: float
    every: int = 1
    kind: Literal["ema"] = "ema"

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise UsageError(
                f'model.reference_update.rate = {self.rate} must lie between 0 and 1; all the way is kind = "reset"'
            )
        _at_least_one("every", self.every)

    def share(self, steps: int, stalled: int) -> float | None:
        return self.rate if steps % self.every == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """Every so many steps all the way to the policy.

    Source: Gorbatovski et al. 2024 (TR-DPO, hard update), arXiv 2404.09656.
    Proved by: tests/training/test_moving.py::test_after_a_reset_the_policy_is_its_own_reference
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    every: int
    kind: Literal["reset"] = "reset"

    def __post_init__(self) -> None:
        _at_least_one("every", self.every)

    def share(self, steps: int, stalled: int) -> float | None:
        return 1.0 if steps % self.every == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """All the way to the policy once the score has not risen for so many steps.

    Source: Liu et al. 2025 (ProRL), arXiv 2505.24864 §2.3.
    Proved by: tests/training/test_moving.py::test_a_stall_is_counted_since_the_best_score_and_the_last_move
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    patience: int
    kind: Literal["stall"] = "stall"

    def __post_init__(self) -> None:
        _at_least_one("patience", self.patience)

    def share(self, steps: int, stalled: int) -> float | None:
        return 1.0 if stalled >= self.patience else None


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"model.reference_update.{name} = {value} must be at least 1")


FOLLOWING: dict[str, type] = {"ema": EMA, "reset": Reset, "stall": Stall}


def _named(value: Any) -> Any:
    """A bare string names the kind; a table has to name one."""
    if isinstance(value, dict) and "kind" not in value:
        raise UsageError(f"model.reference_update needs a kind: {', '.join(FOLLOWING)}")
    return {"kind": value} if isinstance(value, str) else value


FollowingConfig = Annotated[Annotated[EMA | Reset | Stall, Field(discriminator="kind")], BeforeValidator(_named)]
