"""The config of `kleash sft`: texts, and a model that learns to write them."""

from dataclasses import dataclass, field
from typing import Any

from kleash.errors import UsageError
from kleash.models.spec import Chat, ModelSpec
from kleash.training.log_config import LogSpec
from kleash.training.offline.train_config import OfflineTrain
from kleash.training.section import STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTData:
    """[data]: where the texts are, and how questions are asked.

    texts: rows with prompt and completion, with messages, or with text; any file that prompts may be in.
    held_out: of the same form; the loss on them chooses the best checkpoint.
    chat, system, template: as in an online run.
    max_tokens: of a whole row, at which it is cut; left out, one that is longer than the context is refused.
    """

    __pydantic_config__ = STRICT

    texts: str
    held_out: str | None = None
    chat: bool = False
    system: str | None = None
    template: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 2:
            raise UsageError(f"data.max_tokens = {self.max_tokens} must be at least 2: a token, and one to predict")
        if self.system is not None and not self.system.strip():
            raise UsageError("data.system is empty; give it some text, or leave it out")

    @property
    def asked(self) -> Chat:
        return Chat(variables=self.template)


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTKL:
    """[kl]: how far the policy has gone from the reference, measured at each evaluation; nothing is charged for it.

    measure: whether it is. prompts: of the held-out rows, after which the policy writes its own words; 0: their KL on
    the held-out text alone. max_new_tokens: of these words.
    """

    __pydantic_config__ = STRICT

    measure: bool = True
    prompts: int = 32
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        if self.prompts < 0 or self.max_new_tokens < 1:
            raise UsageError("kl.prompts must be at least 0, and kl.max_new_tokens at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig:
    """A whole run of `kleash sft`. `out` is its directory."""

    __pydantic_config__ = STRICT

    out: str
    model: ModelSpec
    data: SFTData
    kl: SFTKL = field(default_factory=SFTKL)
    train: OfflineTrain = field(default_factory=OfflineTrain)
    log: LogSpec = field(default_factory=LogSpec)

    def __post_init__(self) -> None:
        if self.model.critic is not None or self.model.reference_update is not None:
            name = "critic" if self.model.critic is not None else "reference_update"
            raise UsageError(f"model.{name} would not be used by kleash sft; leave it out")
        if self.data.held_out is None and self.train.evaluate_every is not None:
            raise UsageError("train.evaluate_every needs data.held_out: rows to evaluate on")
