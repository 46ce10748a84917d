"""The config of `kleash reward`: pairs, and a reward model that learns which answer is preferred."""

import math
from dataclasses import dataclass, field

from kleash.errors import UsageError
from kleash.models.spec import ModelSpec
from kleash.training.log_config import LogSpec
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.pair_files import BadRows
from kleash.training.section import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardData:
    """[data]: where the pairs are, and how their prompts are asked.

    pairs, held_out: rows with chosen and rejected (docs/pairs.md); the loss on held-out ones chooses the best.
    chat, system: as in an online run, so that the reward model reads there what it has learned from.
    bad_rows: "drop" leaves out, and counts, pairs that cannot be learned from.
    max_tokens: of prompt and answer together; above it, or above what the model takes, a pair is a bad row: a reward
        model cuts nothing off when it is used either.
    """

    __pydantic_config__ = STRICT

    pairs: str
    held_out: str | None = None
    chat: bool = False
    system: str | None = None
    bad_rows: BadRows = "refuse"
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 2:
            raise UsageError(f"data.max_tokens = {self.max_tokens} must be at least 2")
        if self.system is not None and not self.system.strip():
            raise UsageError("data.system is empty; give it some text, or leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class BradleyTerry:
    """[loss]: see `kleash.rl.bradley_terry`. margin: the factor of the data's margins, where it has any."""

    __pydantic_config__ = STRICT

    centre: float = 0.01
    margin: float = 1.0
    careless: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.centre) and self.centre >= 0):
            raise UsageError(f"loss.centre = {self.centre} must be 0 or more")
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise UsageError(f"loss.margin = {self.margin} must be 0 (the data's margins are not used) or more")
        if not 0 <= self.careless < 1:
            raise UsageError(f"loss.careless = {self.careless} is a share of the pairs: at least 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """A whole run of `kleash reward`. `out` is its directory; members: so many reward models, in out/0, out/1, …

    A member differs from another in its seed, train.seed + its number: in its fresh head, its fresh adapter and the
    order of its pairs.
    """

    __pydantic_config__ = STRICT

    out: str
    model: ModelSpec
    data: RewardData
    loss: BradleyTerry = field(default_factory=BradleyTerry)
    members: int = 1
    train: OfflineTrain = field(default_factory=OfflineTrain)
    log: LogSpec = field(default_factory=LogSpec)

    def __post_init__(self) -> None:
        if self.members < 1:
            raise UsageError(f"members = {self.members} must be at least 1")
        unused = {
            "critic": self.model.critic is not None,
            "reference": self.model.reference != "start",
            "reference_dtype": self.model.reference_dtype is not None,
            "reference_update": self.model.reference_update is not None,
            "trust_remote_code": self.model.trust_remote_code,
        }
        if name := next((name for name, given in unused.items() if given), None):
            why = "a reward model is read without code of its own" if name == "trust_remote_code" else "leave it out"
            raise UsageError(f"model.{name} would not be used by kleash reward: {why}")
        if self.data.held_out is None and self.train.evaluate_every is not None:
            raise UsageError("train.evaluate_every needs data.held_out: pairs to evaluate on")
