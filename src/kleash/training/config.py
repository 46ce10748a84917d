"""A run's configuration: the TOML file's sections as frozen dataclasses. The same objects are the Python API.

A component's dataclass *is* its config: field = TOML key. Reading and checking text is `training/toml.py`.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from kleash.algorithms import CISPO, GRPO, GSPO, OWN_PENALTY, PPO, RLOO, LearnsValues
from kleash.beta import PI, PID, Constant, Cosine, Dual, Linear, PPORule, Ziegler
from kleash.errors import UsageError
from kleash.kl.penalties import Exact, FutureSampled, InLoss, InReward, NoPenalty
from kleash.models.spec import Chat, ModelSpec
from kleash.records import Target
from kleash.rewards.spec import RewardSpec

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

#: With neither target nor beta: tight enough that a 200-token answer moves by 4 nats at most, between the 0.0117
#: nats/token of TRL's old default (6 nats at 512 tokens) and the 0.25 of Ziegler et al. 2019 (6 nats at 24 tokens).
DEFAULT_TARGET = "0.02 nats/token"
#: Where a target-holding controller starts: tight, for a low first beta overshoots before it can be raised.
DEFAULT_BETA = 0.05


def _kind(default: str) -> BeforeValidator:
    """A bare string names the kind; a table without one gets the default."""

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, list):
            raise UsageError(
                "kl.penalty: one placement at a time; two would charge the same KL twice. Choose one of the list"
            )
        return {"kind": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(named)


def _with_unit(value: Any) -> Any:
    """A bare number is refused here, where the sentence about units can be said."""
    return Target.parse(value) and value if isinstance(value, int | float | str) else value


PenaltyConfig = Annotated[
    Annotated[Exact | InReward | InLoss | FutureSampled | NoPenalty, Field(discriminator="kind")], _kind("exact")
]
ControllerConfig = Annotated[
    Annotated[PI | PID | Dual | Ziegler | PPORule | Constant | Linear | Cosine, Field(discriminator="kind")],
    _kind("pi"),
]
AlgorithmConfig = Annotated[Annotated[GRPO | RLOO | PPO | GSPO | CISPO, Field(discriminator="kind")], _kind("grpo")]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """[data]: where the prompts are, and how they are asked.

    column: the prompt's column; all other columns go to the rewards.
    held_out: prompts that are never trained on, of the same form; the policy is evaluated on them.
    chat: a text is asked through the chat template, as a user's message.
    system: a system message before every prompt; a text is then a user's message as well.
    add_generation_prompt: whether the template opens the assistant's answer.
    template: what the template reads besides, such as { enable_thinking = false }.
    """

    __pydantic_config__ = STRICT

    prompts: str
    column: str = "prompt"
    held_out: str | None = None
    chat: bool = False
    system: str | None = None
    add_generation_prompt: bool = True
    template: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.system is not None and not self.system.strip():
            raise UsageError("data.system is empty; give it some text, or leave it out")

    @property
    def asked(self) -> Chat:
        """What the chat template is told."""
        return Chat(add_generation_prompt=self.add_generation_prompt, variables=self.template)


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

    With a target, `beta` is where the controller starts. A schedule of targets is a list of {at, target}.
    """

    __pydantic_config__ = STRICT

    penalty: PenaltyConfig = field(default_factory=Exact)
    target: Annotated[str | tuple[TargetStep, ...] | None, BeforeValidator(_with_unit)] = None
    beta: float | None = None
    controller: ControllerConfig | None = None

    def __post_init__(self) -> None:
        schedule = self.schedule
        if schedule and schedule[0].at != 0:
            raise UsageError("kl.target: the first entry of a schedule must have at = 0")
        if [s.at for s in schedule] != sorted({s.at for s in schedule}):
            raise UsageError("kl.target: the steps `at` of a schedule must rise")
        if len({Target.parse(s.target).unit for s in schedule}) > 1:
            raise UsageError("kl.target: all targets of a schedule need the same unit")
        if self.beta is not None and self.beta < 0:
            raise UsageError(f"kl.beta = {self.beta} would reward leaving the reference; it must be at least 0")
        holds = isinstance(self.controller, PI | PID | Dual | Ziegler | PPORule)
        if self.target is not None and self.controller is not None and not holds:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """[train]: how long, how much a step, and how each update moves.

    learning_rate: left out, 1e-5 for full fine-tuning and 1e-4 for an adapter. groups_per_pass: prompt groups that
    go through the model together; left out, all of them. checkpoint_every: steps between checkpoints. keep: how many
    of the newest stay, beside the best, the last good one and those that other runs started from; or "all".
    evaluate_every: steps between evaluations on data.held_out; left out, at every checkpoint. evaluate_samples: of
    each held-out prompt, or "greedy".
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
    adam_betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_updates: int = 5
    max_grad_norm: float = 1.0
    checkpoint_every: int = 50
    keep: int | Literal["all"] = 3
    evaluate_every: int | None = None
    evaluate_samples: int | Literal["greedy"] = 1
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

    def _check_evaluation(self) -> None:
        if self.evaluate_samples != "greedy" and self.evaluate_samples < 1:
            raise UsageError(f'train.evaluate_samples = {self.evaluate_samples} must be at least 1, or "greedy"')
        every, saved = self.evaluate_every, self.checkpoint_every
        if every is not None and (every < 1 or (every % saved and saved % every)):
            raise UsageError(
                f"train.evaluate_every = {every} must be a multiple or a divisor of train.checkpoint_every = {saved}: "
                "the best checkpoint is chosen among those that were evaluated"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole run. `out` is its directory. kl: left out, the algorithm's own (none for one published without)."""

    __pydantic_config__ = STRICT

    out: str
    model: ModelSpec
    data: DataSpec
    rewards: tuple[RewardSpec, ...]
    algorithm: AlgorithmConfig = field(default_factory=GRPO)
    kl: KLSpec = None  # pyright: ignore[reportAssignmentType]  # made below, where the algorithm is known
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        if self.kl is None:  # pyright: ignore[reportUnnecessaryComparison]
            own = OWN_PENALTY.get(self.algorithm.kind, Exact)()
            object.__setattr__(self, "kl", KLSpec(penalty=own))
        if not self.rewards:
            raise UsageError('no [[rewards]]: name at least one, for example [[rewards]] with use = "vader"')
        if self.data.held_out is None and (self.train.evaluate_every, self.train.evaluate_samples) != (None, 1):
            raise UsageError(
                "train.evaluate_every and train.evaluate_samples need data.held_out: prompts to evaluate on"
            )
        if self.algorithm.minibatches > self.train.prompts_per_step:
            raise UsageError(
                f"algorithm.minibatches = {self.algorithm.minibatches} exceeds train.prompts_per_step = "
                f"{self.train.prompts_per_step}; a minibatch is made of whole prompt groups"
            )
        if self.model.critic is not None and not isinstance(self.algorithm, LearnsValues):
            raise UsageError(
                f'model.critic = "{self.model.critic}" would not be used: algorithm.kind = "{self.algorithm.kind}" has '
                'no value function; leave it out, or use kind = "ppo"'
            )


def with_critic(config: Config) -> Config:
    """The same config with the critic that its algorithm needs written out."""
    needed = isinstance(config.algorithm, LearnsValues) and config.model.critic is None
    return replace(config, model=replace(config.model, critic="head")) if needed else config


def resolved(config: Config, *, learning_rate: float) -> Config:
    """The same config with what was left to kleash written out: target, law, first beta, learning rate."""
    kl = config.kl
    target = kl.schedule[0].target if kl.target is None and kl.schedule else kl.target
    return replace(
        config,
        kl=replace(kl, target=target, beta=kl.first_beta, controller=kl.law),
        train=replace(config.train, learning_rate=learning_rate),
    )
