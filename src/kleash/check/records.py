"""What `kleash check` reads and says: plain records. Standard library only."""

from dataclasses import dataclass, field
from typing import Any, Literal

Library = Literal["TRL", "verl", "OpenRLHF", "LLaMA-Factory", "ms-swift", "kleash"]
Severity = Literal["note", "warning", "alarm"]
Number = int | float


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that is no literal: it is decided when the script runs. text: as written."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One run's settings as written, in the names of its library.

    method: "grpo", "ppo", "dpo", … or "" where the library has one method. place: file and line, for people.
    settings: dotted for nested configs. version: of the library whose defaults count, as (major, minor).
    """

    library: Library
    method: str
    place: str
    settings: dict[str, Any] = field(default_factory=dict)
    version: tuple[int, int]

    def number(self, key: str, default: Number | None) -> float | None:
        """The setting as a number, the default where it is not given, None where it is decided elsewhere."""
        value = self.settings.get(key, default)
        try:
            return None if value is None or isinstance(value, Unread | bool) else float(value)
        except (TypeError, ValueError):
            return None

    def switch(self, key: str, default: bool = False) -> bool:
        value = self.settings.get(key, default)
        return value.strip().lower() in ("true", "1", "yes", "on") if isinstance(value, str) else value is True

    def word(self, key: str, default: str) -> str:
        value = self.settings.get(key, default)
        return default if value is None or isinstance(value, Unread) else str(value)

    def has(self, key: str) -> bool:
        return self.settings.get(key) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One KL to the reference that a run pays for. All nats.

    where: "reward" (per token or sequence), "loss", "preference" (the beta of DPO and its kin). estimator: of the
    charge. gradient: what its gradient truly is. unit: of the KL that the library logs and steers by, or None where it
    logs none. beta: None where the file does not tell it. spread: the reward is divided by its spread before it meets
    the charge, so that beta is in units of spread / nat. group: of a group baseline that holds the sample itself, and
    not the charge: the reward's share is (1 − 1/group) then. target: what a controller steers to, in `unit`.
    """

    where: Literal["reward", "loss", "preference"]
    estimator: str
    gradient: str
    unit: Literal["nats/token", "nats/sequence"] | None
    beta: float | None
    spread: bool = False
    group: int | None = None
    target: float | None = None

    def per_sequence(self, reward_std: Number | None = None) -> float | None:
        """Reward lost per nat of KL of the whole answer: the β of E[R] − β·KL(sequence).

        reward_std: the reward's spread within a group; without it the result is in units of that spread.
        """
        if self.beta is None:
            return None
        own = 1.0 if self.group is None or self.group < 2 else self.group / (self.group - 1)
        return self.beta * own * (reward_std if self.spread and reward_std is not None else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """What a config can fall into. what: in a sentence. do: what would be right. source: where it is seen."""

    severity: Severity
    libraries: str
    what: str
    do: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A trap of a config. name: in TRAPS. here: this config's part in it, as written or computed."""

    name: str
    here: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A config, read. length: tokens of an answer that per-token figures assume. off: why nothing is charged."""

    given: Given
    charges: tuple[Charge, ...]
    traps: tuple[Found, ...]
    length: float
    length_said: str
    off: str | None = None
    notes: tuple[str, ...] = ()
