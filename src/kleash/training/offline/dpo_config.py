"""The config of `kleash dpo`: preferences, a loss, and how far the policy may go from its reference."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kleash.algorithms.preference import (
    CDPO,
    CPO,
    DPO,
    EXO,
    FDPO,
    IPO,
    KTO,
    LDDPO,
    ORPO,
    AdaptsToPairs,
    BetaDPO,
    Hinge,
    RobustDPO,
    SimPO,
)
from kleash.errors import UsageError
from kleash.models.spec import Chat, ModelSpec
from kleash.records import Target
from kleash.training.kl_config import ControllerConfig, budget_with_unit, holds, with_unit
from kleash.training.log_config import LogSpec
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.pair_files import BadRows
from kleash.training.section import STRICT, named_kind

LossConfig = Annotated[
    Annotated[
        DPO | CDPO | RobustDPO | IPO | Hinge | EXO | FDPO | LDDPO | BetaDPO | ORPO | SimPO | CPO | KTO,
        Field(discriminator="kind"),
    ],
    named_kind("dpo"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairData:
    """[data]: where the preferences are, and how their prompts are asked.

    pairs: rows with prompt, chosen and rejected, or for KTO prompt, completion and label (docs/pairs.md); any file
        that prompts may be in.
    held_out: of the same form, never trained on: accuracy and KL are measured on them, and they choose the best
        checkpoint.
    chat, system, template: as in an online run.
    max_tokens: of prompt and answer together, at which answers are cut; left out, a row that is longer than the
        context is refused.
    bad_rows: "refuse" or "drop" rows that cannot be learned from.
    """

    __pydantic_config__ = STRICT

    pairs: str
    held_out: str | None = None
    chat: bool = False
    system: str | None = None
    template: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    bad_rows: BadRows = "refuse"

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 2:
            raise UsageError(f"data.max_tokens = {self.max_tokens} must be at least 2: a prompt, and an answer")
        if self.system is not None and not self.system.strip():
            raise UsageError("data.system is empty; give it some text, or leave it out")

    @property
    def asked(self) -> Chat:
        return Chat(variables=self.template)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairKL:
    """[kl]: the KL on the policy's own words, measured at every evaluation, and what is done about it.

    prompts, samples: how many prompts are asked for how many answers each. max_new_tokens: of an answer; left out, the
    longest answer of the pairs.
    target: beta is adapted to hold it, by the controller; the loss's own beta is where it starts. budget: above it the
    run saves and stops, and no checkpoint above it is the best.
    cache: the reference's log-probs of the pairs are kept on disk and read from there instead of computed each time.
    """

    __pydantic_config__ = STRICT

    prompts: int = 64
    samples: int = 2
    max_new_tokens: int | None = None
    target: Annotated[str | None, BeforeValidator(with_unit)] = None
    budget: Annotated[str | None, BeforeValidator(budget_with_unit)] = None
    controller: ControllerConfig | None = None
    cache: bool = False

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"kl.{name} = {value} must be at least 1")
        if self.controller is not None and (self.target is None or not holds(self.controller)):
            raise UsageError(
                f'kl.controller = "{self.controller.kind}" needs kl.target and a law that holds it (pi, pid, dual, '
                "ziegler, ppo): without a target beta stays at loss.beta"
            )
        target, budget = self.held, self.ceiling
        if target and budget and target.unit == budget.unit and target.value >= budget.value:
            raise UsageError(
                f"kl.budget = {budget} is not above the target of {target}: holding the target would end the run"
            )

    @property
    def held(self) -> Target | None:
        return None if self.target is None else Target.parse(self.target)

    @property
    def ceiling(self) -> Target | None:
        return None if self.budget is None else Target.parse(self.budget, "KL budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class DPOConfig:
    """A whole run of `kleash dpo`. `out` is its directory."""

    __pydantic_config__ = STRICT

    out: str
    model: ModelSpec
    data: PairData
    loss: LossConfig = field(default_factory=DPO)
    kl: PairKL = field(default_factory=PairKL)
    train: OfflineTrain = field(default_factory=OfflineTrain)
    log: LogSpec = field(default_factory=LogSpec)

    def __post_init__(self) -> None:
        if self.model.critic is not None:
            raise UsageError("model.critic would not be used by kleash dpo; leave it out")
        moving = self.model.reference_update
        if moving is not None and moving.kind == "stall":
            raise UsageError('model.reference_update = "stall" waits for a reward, and kleash dpo has none; use "ema"')
        if self.kl.target is not None and not self.loss.needs_reference:
            raise UsageError(
                f'kl.target needs a loss that holds the reference: the beta of loss.kind = "{self.loss.kind}" is no '
                'price of KL. Use loss.kind = "dpo" or "ipo", or kl.budget'
            )
        if self.kl.target is not None and isinstance(self.loss, AdaptsToPairs):
            raise UsageError(
                f'kl.target and loss.kind = "{self.loss.kind}" would both move beta; leave the target out, or use "dpo"'
            )
        if not self.kl.cache:
            return
        if not self.loss.needs_reference:
            raise UsageError(
                f'kl.cache = true would not be used: loss.kind = "{self.loss.kind}" reads no reference; leave it out'
            )
        if moving is not None or len(self.model.references) > 1:
            what = "reference_update: what is kept would be the first reference's" if moving else "several references"
            raise UsageError(f"kl.cache = true cannot go with model.{what}; leave kl.cache out")


def resolved_dpo(config: DPOConfig, *, learning_rate: float, max_new_tokens: int) -> DPOConfig:
    """The same config with what was left to kleash written out."""
    return replace(
        config,
        kl=replace(config.kl, max_new_tokens=max_new_tokens),
        train=replace(config.train, learning_rate=learning_rate),
    )
