"""A run's configuration: the TOML file's sections as frozen dataclasses. The same objects are the Python API.

A component's dataclass *is* its config: field = TOML key. Reading and checking text is `training/toml.py`.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from kleash.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    OWN_PENALTY,
    PPO,
    RLOO,
    BestOfN,
    CreditsSteps,
    LearnsValues,
    OnlineDPO,
    PunishesLength,
    ReinforcePP,
    ReMax,
)
from kleash.beta.entropy import AdaptiveEntropy, DualEntropy, FixedEntropy
from kleash.errors import UsageError
from kleash.kl.divergence_penalties import order_of
from kleash.kl.penalties import Exact, InPreference, InReward
from kleash.models.spec import Chat, ModelSpec
from kleash.records import Target
from kleash.rewards.shapes import Overlong
from kleash.rewards.spec import RewardSpec
from kleash.training.budget import least
from kleash.training.kl_config import KLSpec, in_the_pairs, standardised
from kleash.training.log_config import LogSpec
from kleash.training.section import STRICT, named_kind
from kleash.training.train_config import BIAS_RATE, TrainSpec
from kleash.training.watch_config import WatchSpec

AlgorithmConfig = Annotated[
    Annotated[
        GRPO | RLOO | PPO | GSPO | CISPO | DAPO | ReinforcePP | ReMax | BestOfN | OnlineDPO, Field(discriminator="kind")
    ],
    named_kind("grpo"),
]

EntropyConfig = Annotated[
    Annotated[FixedEntropy | AdaptiveEntropy | DualEntropy, Field(discriminator="kind")], named_kind("fixed")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """[data]: where the prompts are, and how they are asked.

    column: the prompt's column; all other columns go to the rewards.
    held_out: prompts that are never trained on, of the same form; the policy is evaluated on them.
    chat: a text is asked through the chat template, as a user's message.
    system: a system message before every prompt; a text is then a user's message as well.
    add_generation_prompt: whether the template opens the assistant's answer.
    template: what the template reads besides, such as { enable_thinking = false }.
    rollout: a function of one's own that makes the completions, in several turns or with tools; its code is run.
    """

    __pydantic_config__ = STRICT

    prompts: str
    column: str = "prompt"
    held_out: str | None = None
    chat: bool = False
    system: str | None = None
    add_generation_prompt: bool = True
    template: dict[str, Any] = field(default_factory=dict)
    rollout: str | None = None

    def __post_init__(self) -> None:
        if self.system is not None and not self.system.strip():
            raise UsageError("data.system is empty; give it some text, or leave it out")

    @property
    def asked(self) -> Chat:
        """What the chat template is told."""
        return Chat(add_generation_prompt=self.add_generation_prompt, variables=self.template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole run. `out` is its directory. kl: left out, the algorithm's own (none for one published without).

    Where the algorithm divides the reward by each group's standard deviation, beta is counted in standard deviations of
    the reward, and a first beta that was left out is DEFAULT_BETA_IN_DEVIATIONS; so it is for best-of-n, whose credit
    is a rank.
    entropy: a bonus on the policy's entropy, whatever the algorithm; left out, there is none.
    watch: when the monitor looks, and what it does. log: boards that the figures also go to.
    """

    __pydantic_config__ = STRICT

    out: str
    model: ModelSpec
    data: DataSpec
    rewards: tuple[RewardSpec, ...]
    algorithm: AlgorithmConfig = field(default_factory=GRPO)
    kl: KLSpec = None  # pyright: ignore[reportAssignmentType]  # made below, where the algorithm is known
    entropy: EntropyConfig | None = None
    train: TrainSpec = field(default_factory=TrainSpec)
    watch: WatchSpec = field(default_factory=WatchSpec)
    log: LogSpec = field(default_factory=LogSpec)

    def __post_init__(self) -> None:
        if self.kl is None:  # pyright: ignore[reportUnnecessaryComparison]
            own = OWN_PENALTY.get(self.algorithm.kind, Exact)()
            object.__setattr__(self, "kl", KLSpec(penalty=own))
        if isinstance(self.algorithm, BestOfN) or getattr(self.algorithm, "std", None) == "group":
            object.__setattr__(self, "kl", standardised(self.kl))
        if isinstance(self.algorithm, OnlineDPO):
            object.__setattr__(self, "kl", in_the_pairs(self.kl, holds_targets=self.algorithm.holds_targets))
        elif isinstance(self.kl.penalty, InPreference):
            raise UsageError(
                f'kl.penalty = "in_preference" is the leash inside a loss of pairs, and algorithm.kind = '
                f'"{self.algorithm.kind}" has none; use penalty = "exact", or kind = "online_dpo"'
            )
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
        self._check_length()
        self._check_budget()
        one = order_of(self.kl.penalty) is not None or getattr(self.kl.penalty, "estimator", None) == "k3"
        if one and len(self.model.references) > 1:
            raise UsageError(
                f'kl.penalty = "{self.kl.penalty.kind}" needs one reference, whose probabilities add up to 1, and '
                'model.reference names several: use "exact", "in_reward", "future_sampled", "in_loss" with k2 or exact'
            )
        if not isinstance(self.algorithm, LearnsValues):
            self._check_no_critic()
        self._check_importance()
        if self.train.mismatch is not None and isinstance(self.algorithm, OnlineDPO):
            raise UsageError(
                'train.mismatch corrects the credit of a policy gradient, and algorithm.kind = "online_dpo" has none: '
                "a pair teaches the same whoever wrote it. Leave it out"
            )
        if self.train.mismatch is not None and getattr(self.algorithm, "off_policy", None) == "full":
            raise UsageError(
                'train.mismatch and algorithm.off_policy = "full" contradict each other: "full" bounds no ratio; leave '
                "one of them out"
            )

    def _check_length(self) -> None:
        twice = any(isinstance(shape, Overlong) for reward in self.rewards for shape in reward.shape)
        if twice and isinstance(self.algorithm, PunishesLength) and self.algorithm.overlong:
            raise UsageError(
                f"algorithm.overlong = {self.algorithm.overlong} and the shape overlong of [[rewards]] would both "
                "punish a long completion; set algorithm.overlong = 0, or leave the shape out"
            )

    def _check_no_critic(self) -> None:
        for name, value in (
            ("model.critic", self.model.critic),
            ("train.critic_bias_rate", self.train.critic_bias_rate),
        ):
            if value is not None:
                raise UsageError(
                    f'{name} = {value!r} would not be used: algorithm.kind = "{self.algorithm.kind}" has no value '
                    'function; leave it out, or use kind = "ppo"'
                )

    def _check_importance(self) -> None:
        """A form of the KL's ratios that the algorithm would not use, or that contradicts what it promises."""
        importance = self.kl.penalty.importance
        if importance in (None, "prefix"):
            return
        if getattr(self.algorithm, "off_policy", None) == "full":
            raise UsageError(
                f'kl.penalty.importance = "{importance}" and algorithm.off_policy = "full" contradict each other: '
                '"full" is the exact gradient with every prefix ratio; leave importance out'
            )
        if isinstance(self.algorithm, CreditsSteps) and isinstance(self.kl.penalty, InReward):
            raise UsageError(
                f'kl.penalty.importance = "{importance}" would not be used: algorithm.kind = "{self.algorithm.kind}" '
                'has the whole charge of "in_reward" in its advantages, with the clipped token ratio; leave it out'
            )

    def _check_budget(self) -> None:
        budget, longest = self.kl.ceiling, self.train.max_new_tokens
        if budget is None:
            return
        for held in self.kl.schedule:
            target = Target.parse(held.target)
            reached = least(target, budget.unit, longest)
            if reached >= budget.value:
                come = (
                    "" if target.unit == budget.unit else f", at least {reached:g} {budget.unit} over {longest} tokens"
                )
                raise UsageError(
                    f"kl.budget = {budget} is not above the target of {target}{come}: holding the target would end the "
                    "run. Raise the budget, or lower the target"
                )


def with_critic(config: Config) -> Config:
    """The same config with the critic that its algorithm needs written out, and the rate of its bias."""
    if not isinstance(config.algorithm, LearnsValues):
        return config
    model, train = config.model, config.train
    return replace(
        config,
        model=replace(model, critic=model.critic or "head"),
        train=replace(train, critic_bias_rate=train.critic_bias_rate or BIAS_RATE),
    )


def resolved(config: Config, *, learning_rate: float) -> Config:
    """The same config with what was left to kleash written out: target, law, first beta, learning rate."""
    kl = config.kl
    target = kl.schedule[0].target if kl.target is None and kl.schedule else kl.target
    return replace(
        config,
        kl=replace(kl, target=target, beta=kl.first_beta, controller=kl.law),
        train=replace(config.train, learning_rate=learning_rate),
    )
