"""How strong the entropy bonus is: a constant, or a law that holds the entropy of a token at a target. Pure floats.

    state = law.init()
    state = law.update(state, entropy)      # of the step just measured, nats per token

`state.coef` is then what the next step's loss has. Like beta's, these laws see a step's figure after that step.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from kleash.beta.guard import STRICT, require_finite
from kleash.errors import UsageError
from kleash.records import Target

#: "token": Σ_t H(π(·|prefix)) with prefixes held fixed. "sequence": the entropy of whole completions.
Scope = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class EntropyState:
    """All that a law remembers. coef: in force. memory: the law's own number. clipped: moves that met a bound."""

    coef: float
    memory: float
    clipped: int = 0


@runtime_checkable
class EntropyLaw(Protocol):
    """A frozen dataclass, which is its config. Its `update` is a pure function of an explicit state.

    Source: the definition.
    Proved by: tests/beta/test_entropy.py::test_each_law_by_hand
    """

    @property
    def kind(self) -> str: ...
    @property
    def scope(self) -> Scope: ...
    def init(self) -> EntropyState: ...
    def update(self, state: EntropyState, entropy: float | None) -> EntropyState: ...


@dataclass(frozen=True, kw_only=True)
class FixedEntropy:
    """The same coefficient at every step. Below 0 it makes the policy surer of itself.

    Source: Mnih et al. 2016 (A3C), arXiv 1602.01783.
    Proved by: tests/beta/test_entropy.py::test_each_law_by_hand
    """

    kind: Literal["fixed"] = "fixed"
    coef: float
    scope: Scope = "token"
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        if not math.isfinite(self.coef) or self.coef == 0:
            raise UsageError(
                f"entropy.coef = {self.coef} must be a number other than 0; without a bonus leave [entropy] out"
            )

    def init(self) -> EntropyState:
        return EntropyState(self.coef, self.coef)

    def update(self, state: EntropyState, entropy: float | None) -> EntropyState:
        """The same."""
        return state


@dataclass(frozen=True, kw_only=True)
class AdaptiveEntropy:
    """c rises by `delta` where the entropy is below the target, else falls by it; in force only at or below the target.

    So nothing is paid for entropy that is there already, and a collapse is met within a few steps. The report has both
    with the entropy of the step's own samples; here what is in force in a step was decided by the step before.

    Source: He et al. 2025 (Skywork-OR1), arXiv 2505.22312, adaptive entropy control.
    Proved by: tests/beta/test_entropy.py::test_each_law_by_hand
    """

    kind: Literal["adaptive"] = "adaptive"
    target: str
    delta: float = 0.005
    start: float = 0.0
    most: float = 1.0
    scope: Scope = "token"
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _per_token(self.target)
        require_finite(self, positive=("delta", "most"), nonnegative=("start",))
        if self.start > self.most:
            raise UsageError(f"entropy.start = {self.start} must be at most entropy.most = {self.most}")

    def init(self) -> EntropyState:
        """The first step's entropy is not known yet, so its bonus is the first coefficient as it stands."""
        return EntropyState(self.start, self.start)

    def update(self, state: EntropyState, entropy: float | None) -> EntropyState:
        """c ← c ± delta in [0, most]; the coefficient is c while entropy ≤ target, else 0. None: as before."""
        if entropy is None or not math.isfinite(entropy):
            return state
        target = _per_token(self.target)
        moved = state.memory + (self.delta if entropy < target else -self.delta)
        memory = min(max(moved, 0.0), self.most)  # counted in `clipped`
        return EntropyState(memory if entropy <= target else 0.0, memory, state.clipped + (memory != moved))


@dataclass(frozen=True, kw_only=True)
class DualEntropy:
    """log coef ← log coef + rate · (target − entropy)/target: the multiplier of the constraint entropy ≥ target.

    Source: Haarnoja et al. 2018 (SAC), arXiv 1812.05905 §5, in log space and relative to the target.
    Proved by: tests/beta/test_entropy.py::test_dual_ends_at_the_multiplier_of_a_solved_problem
    """

    kind: Literal["dual"] = "dual"
    target: str
    rate: float = 0.1
    start: float = 0.01
    least: float = 1e-4
    most: float = 1.0
    scope: Scope = "token"
    __pydantic_config__ = STRICT

    def __post_init__(self) -> None:
        _per_token(self.target)
        require_finite(self, positive=("rate", "start", "least", "most"))
        if not self.least <= self.start <= self.most:
            raise UsageError(
                f"entropy.start = {self.start} must lie between entropy.least = {self.least} and most = {self.most}"
            )

    def init(self) -> EntropyState:
        return EntropyState(self.start, self.start)

    def update(self, state: EntropyState, entropy: float | None) -> EntropyState:
        """The next step's coefficient, within [least, most]. None: as before."""
        if entropy is None or not math.isfinite(entropy):
            return state
        target = _per_token(self.target)
        moved = state.coef * math.exp(self.rate * (target - entropy) / target)
        coef = min(max(moved, self.least), self.most)  # counted in `clipped`
        return replace(state, coef=coef, memory=coef, clipped=state.clipped + (coef != moved))


#: The laws by the `kind` a config names them with.
ENTROPY_LAWS: dict[str, type] = {"fixed": FixedEntropy, "adaptive": AdaptiveEntropy, "dual": DualEntropy}


def _per_token(text: str) -> float:
    """A target of so many nats per token, which is how the entropy is measured."""
    target = Target.parse(text, "entropy target")
    if target.unit != "nats/token":
        raise UsageError(
            f'entropy.target = "{text}": the entropy that is held is that of a token; write it as "0.5 nats/token"'
        )
    return target.value
