"""The online algorithms, a page each. Adding one is one file and one line here."""

from typing import ClassVar, Protocol, runtime_checkable

from kleash.algorithms.best_of_n import BestOfN
from kleash.algorithms.cispo import CISPO
from kleash.algorithms.dapo import DAPO
from kleash.algorithms.entropy import EntropyBonus
from kleash.algorithms.group_relative import Loss, Totals, ValueFigures
from kleash.algorithms.grpo import GRPO
from kleash.algorithms.gspo import GSPO
from kleash.algorithms.online_dpo import OnlineDPO
from kleash.algorithms.ppo import PPO
from kleash.algorithms.ptx import Ptx
from kleash.algorithms.reinforce import ReinforcePP
from kleash.algorithms.remax import ReMax
from kleash.algorithms.rloo import RLOO
from kleash.algorithms.step_penalty import StepPenalty, StepPrice
from kleash.kl.penalties import InPreference, InReward, NoPenalty, Penalty
from kleash.records import Reading
from kleash.rl.policy_losses import Length
from kleash.tensors import Batch, Credit, Look


@runtime_checkable
class Algorithm(Protocol):
    """A frozen dataclass, which is its config, with a loss."""

    @property
    def kind(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    @property
    def epochs(self) -> int: ...
    @property
    def minibatches(self) -> int: ...
    @property
    def prefix_cap(self) -> float: ...
    @property
    def label(self) -> str:
        """What the expected gradient is, in words."""
        ...

    def loss(self, look: Look, batch: Batch, totals: Totals, penalty: Penalty, beta: float) -> Loss: ...


@runtime_checkable
class AveragesTokens(Protocol):
    """An algorithm that may average its token losses by another length than the constant."""

    @property
    def length(self) -> Length: ...


@runtime_checkable
class CreditsSteps(Protocol):
    """An algorithm that credits a whole step at once: the loop asks it once, before the step's first update.

    Its loss finds the answer in `batch.credit`. `look` is without gradients.
    """

    def credit(self, look: Look, batch: Batch, penalty: Penalty, beta: float) -> Credit: ...


@runtime_checkable
class LimitsSteps(Protocol):
    """An algorithm that ends a step's updates once the policy has moved far enough from the one that sampled."""

    def is_beyond(self, kl_old: Reading) -> bool:
        """Whether the update at hand is not to be taken. kl_old is a step size, never the leash."""
        ...


@runtime_checkable
class LearnsValues(Protocol):
    """An algorithm with a value function: the policy gets a critic, and `Look.values` is there."""

    @property
    def vf_coef(self) -> float:
        """Weight of the value loss."""
        ...


@runtime_checkable
class PricesSteps(Protocol):
    """An algorithm that may charge for kl_old in its loss. The coefficient moves: the run puts it in each step."""

    @property
    def step_penalty(self) -> StepPenalty | None: ...


@runtime_checkable
class MixesTexts(Protocol):
    """An algorithm that may add a language-model loss on texts of their own to each update."""

    @property
    def ptx(self) -> Ptx | None: ...


@runtime_checkable
class ReplacesGroups(Protocol):
    """An algorithm under which fresh prompts take the place of groups whose raw scores are all equal."""

    @property
    def max_draws(self) -> int:
        """At most so many times the step's prompts are drawn."""
        ...


@runtime_checkable
class NeedsGreedy(Protocol):
    """An algorithm whose baseline is the score of each prompt's greedy completion: `Batch.baseline` is there."""

    needs_greedy: ClassVar[bool]


@runtime_checkable
class PunishesLength(Protocol):
    """An algorithm that adds DAPO's soft overlong punishment to the score."""

    @property
    def overlong(self) -> float:
        """Share of max_new_tokens over which it rises; 0: none."""
        ...


ALGORITHMS: dict[str, type] = {
    "grpo": GRPO,
    "rloo": RLOO,
    "ppo": PPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "dapo": DAPO,
    "reinforce++": ReinforcePP,
    "remax": ReMax,
    "best_of_n": BestOfN,
    "online_dpo": OnlineDPO,
}

#: The penalty of the paper, where the config has no [kl]. The others are leashed by the default one.
OWN_PENALTY: dict[str, type] = {
    "cispo": NoPenalty,
    "dapo": NoPenalty,
    "reinforce++": InReward,
    "online_dpo": InPreference,
}

__all__ = [
    "ALGORITHMS",
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "OWN_PENALTY",
    "PPO",
    "RLOO",
    "Algorithm",
    "AveragesTokens",
    "BestOfN",
    "CreditsSteps",
    "EntropyBonus",
    "LearnsValues",
    "LimitsSteps",
    "Loss",
    "MixesTexts",
    "NeedsGreedy",
    "OnlineDPO",
    "PricesSteps",
    "Ptx",
    "PunishesLength",
    "ReMax",
    "ReinforcePP",
    "ReplacesGroups",
    "StepPenalty",
    "StepPrice",
    "Totals",
    "ValueFigures",
]
