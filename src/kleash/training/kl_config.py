"""[kl]: the leash. Which penalty, which target or beta, which controller."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kleash.beta import PI, PID, Constant, Cosine, Dual, Linear, PPORule, Ziegler
from kleash.errors import UsageError
from kleash.kl.penalties import Chi2, Exact, FutureSampled, InLoss, InPreference, InReward, NoPenalty, Renyi
from kleash.models.token_classes import FORMAT
from kleash.records import Target
from kleash.training.section import STRICT, named_kind
from kleash.training.token_weights import ClassWeights, check_pattern

#: With neither target nor beta: tight enough that a 200-token answer moves by 4 nats at most, between the 0.0117
#: nats/token of TRL's old default (6 nats at 512 tokens) and the 0.25 of Ziegler et al. 2019 (6 nats at 24 tokens).
DEFAULT_TARGET = "0.02 nats/token"
#: Where a target-holding controller starts: tight, for a low first beta overshoots before it can be raised.
DEFAULT_BETA = 0.05
#: The same where the reward is divided by its group's standard deviation: a tenth of a unit, or less, on a policy that
#: has learnt. From 0.05 GSPO ran to 34 nats at a target of 4 before the law could answer (docs/runs/leash-family.md).
DEFAULT_BETA_IN_DEVIATIONS = 0.5


def with_unit(value: Any) -> Any:
    """A bare number is refused here, where the sentence about units can be said."""
    return Target.parse(value) and value if isinstance(value, int | float | str) else value


def budget_with_unit(value: Any) -> Any:
    """The same for a budget."""
    return value if value is None else Target.parse(value, "KL budget") and value


PenaltyConfig = Annotated[
    Annotated[
        Exact | InReward | InLoss | FutureSampled | Chi2 | Renyi | InPreference | NoPenalty, Field(discriminator="kind")
    ],
    named_kind("exact"),
]
ControllerConfig = Annotated[
    Annotated[PI | PID | Dual | Ziegler | PPORule | Constant | Linear | Cosine, Field(discriminator="kind")],
    named_kind("pi"),
]


def holds(controller: object) -> bool:
    """Whether it is a law that holds a target; the others follow a schedule."""
    return isinstance(controller, PI | PID | Dual | Ziegler | PPORule)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStep:
    """One entry of a target schedule: from step `at` on, hold `target`."""

    __pydantic_config__ = STRICT

    at: int
    target: str

    def __post_init__(self) -> None:
        Target.parse(self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class KLSpec:
    """[kl]: the leash. Give a target (held by the controller) or a beta; with neither, DEFAULT_TARGET is held.

    With a target, `beta` is where the controller starts. A schedule of targets is a list of {at, target}. Above the
    `budget` a run saves and stops, and no checkpoint above it is the best. `weights`: by the class of the sampled
    token; `format`: a regular expression that the whole text of a format token matches.
    """

    __pydantic_config__ = STRICT

    penalty: PenaltyConfig = field(default_factory=Exact)
    target: Annotated[str | tuple[TargetStep, ...] | None, BeforeValidator(with_unit)] = None
    budget: Annotated[str | None, BeforeValidator(budget_with_unit)] = None
    beta: float | None = None
    controller: ControllerConfig | None = None
    weights: ClassWeights | None = None
    format: str = FORMAT

    def __post_init__(self) -> None:
        check_pattern(self.format)
        whole = isinstance(self.penalty, Exact | Chi2 | Renyi)
        if self.weights is not None and not (
            whole or (isinstance(self.penalty, InLoss) and self.penalty.estimator == "exact")
        ):
            raise UsageError(
                "kl.weights multiply the divergence of each position over the whole vocabulary, and this kl.penalty "
                f'({self.penalty.kind}) charges a sample of it or nothing; use "exact", "chi2", "renyi", or "in_loss" '
                'with estimator = "exact"'
            )
        schedule = self.schedule
        if schedule and schedule[0].at != 0:
            raise UsageError("kl.target: the first entry of a schedule must have at = 0")
        if [s.at for s in schedule] != sorted({s.at for s in schedule}):
            raise UsageError("kl.target: the steps `at` of a schedule must rise")
        if len({Target.parse(s.target).unit for s in schedule}) > 1:
            raise UsageError("kl.target: all targets of a schedule need the same unit")
        if self.beta is not None and self.beta < 0:
            raise UsageError(f"kl.beta = {self.beta} would reward leaving the reference; it must be at least 0")
        if self.target is not None and self.controller is not None and not holds(self.controller):
            raise UsageError(
                f'kl.controller = "{self.controller.kind}" follows a schedule and cannot hold a target; leave out '
                'kl.target, or use "pi"'
            )
        steered = self.target is not None or self.beta or not isinstance(self.controller, Constant | None)
        if isinstance(self.penalty, NoPenalty) and steered:
            raise UsageError(
                'kl.penalty = "none" cannot hold a target or use a beta or a controller; leave them out, '
                'or use penalty = "exact"'
            )

    @property
    def schedule(self) -> tuple[TargetStep, ...]:
        """The targets as given, or the default one; empty where beta alone is given or there is no penalty."""
        if isinstance(self.target, str):
            return (TargetStep(at=0, target=self.target),)
        if self.target is not None:
            return self.target
        fixed = isinstance(self.controller, Constant | Linear | Cosine) or (
            self.beta is not None and self.controller is None
        )
        if fixed or isinstance(self.penalty, NoPenalty):
            return ()
        return (TargetStep(at=0, target=DEFAULT_TARGET),)

    def target_at(self, step: int) -> Target | None:
        """The target in force at a step; None without one."""
        due = [s for s in self.schedule if s.at <= step]
        return Target.parse(due[-1].target) if due else None

    @property
    def ceiling(self) -> Target | None:
        """The budget, read."""
        return None if self.budget is None else Target.parse(self.budget, "KL budget")

    @property
    def law(self) -> PI | PID | Dual | Ziegler | PPORule | Constant | Linear | Cosine:
        """The controller: PI where there is a target to hold, constant where there is not."""
        if self.controller is not None:
            return self.controller
        return PI() if self.schedule else Constant()

    @property
    def first_beta(self) -> float:
        if isinstance(self.penalty, NoPenalty):
            return 0.0
        return DEFAULT_BETA if self.beta is None else self.beta


def standardised(kl: KLSpec) -> KLSpec:
    """The same leash on rewards in standard deviations: a first beta that was left out is written out."""
    if kl.beta is not None or isinstance(kl.penalty, NoPenalty):
        return kl
    target = DEFAULT_TARGET if kl.target is None and kl.schedule else kl.target
    return replace(kl, target=target, beta=DEFAULT_BETA_IN_DEVIATIONS)


def in_the_pairs(kl: KLSpec, *, holds_targets: bool) -> KLSpec:
    """The same leash for an algorithm whose loss of pairs has the reference in it: the default penalty gives way to it.

    Raises:
        UsageError: another penalty, a beta of 0, at which the loss is not defined, or a target that beta cannot hold.
    """
    if not isinstance(kl.penalty, Exact | InPreference):
        raise UsageError(
            f'kl.penalty = "{kl.penalty.kind}": online_dpo has the reference inside its loss of pairs, and a second '
            'charge would count the KL twice; leave the penalty out ("in_preference")'
        )
    kl = replace(kl, penalty=InPreference())
    if kl.first_beta == 0 or getattr(kl.law, "end", 1.0) == 0:
        raise UsageError(
            "kl.beta = 0: online_dpo's loss of pairs is of log-ratios times beta, so there is nothing to learn at 0; "
            "use a small beta, such as 0.01"
        )
    if kl.schedule and not holds_targets:
        raise UsageError(
            'algorithm.preference = "dpo" with labels = "winner" cannot hold a KL target: with certain labels a larger '
            'beta slows the policy and does not bring it back. Use labels = "bradley_terry" or preference = "ipo", or '
            "give kl.beta (0.1 is usual) and a kl.budget"
        )
    return kl
