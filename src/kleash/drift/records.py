"""What an audit of drift found, as plain records: drift.json is `Audit` as JSON. Standard library only.

Everything that is shown (terminal, page, card, badge) reads these records and nothing else. Nats; `None` means not
measured, never 0. "forward" is KL(base‖tuned), "reverse" KL(tuned‖base).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

AUDIT_SCHEMA = 1

Verdict = Literal[
    "insufficient evidence",
    "party trick",
    "damaged",
    "drifted for nothing",
    "improved at a price",
    "improved, still itself",
    "unchanged",
]
Outcome = Literal["gained", "LOST", "no gain", "unclear"]
#: How a KL was had: from both whole distributions; at least so much (a server's top-k); from sampled tokens alone.
Kind = Literal["exact", "lower bound", "sampled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A number with its 95 % interval, clustered by document (or by item, for scores).

    `low` and `high` are None with fewer than 25 clusters; `warning` says what is wrong with the interval, if anything.
    """

    value: float
    low: float | None = None
    high: float | None = None
    standard_error: float | None = None
    n: int
    clusters: int
    effective_n: float | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two models. fingerprint: as `kleash.models.fingerprint` makes it, verified by `kleash verify`."""

    name: str
    kind: str
    dtype: str
    fingerprint: dict[str, Any]
    parameters: int | None = None
    adapter: str | None = None
    quantised: str | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What of tokenizer, vocabulary, template and special tokens the sides share, and what was done about the rest."""

    tokenizer: str
    vocabulary: tuple[int, int]
    template: str
    special_tokens: str
    used_template: str
    masked_rows: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """One direction's KL per token: the mean and what the mean hides."""

    mean: Interval
    median: Interval
    q90: Interval
    q95: Interval
    q99: Interval
    q999: Interval
    max: float
    max_at: str
    top_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a distribution's tokens in one domain, token class, confidence or position bucket.

    `forward`'s interval is simultaneous over the parts of one table where `simultaneous` says so; share: of all the KL.
    """

    name: str
    forward: Interval
    share: float | None = None
    simultaneous: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of a heat map."""

    text: str
    forward: float | None
    delta: float | None = None
    flipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One document with its heat map. prompt: shown, not scored."""

    id: str
    domain: str | None
    prompt: str
    tokens: list[Token]
    forward: float


#: What the ends of a prediction's score are.
PREDICTED = "1: word for word, 0: by letters' frequencies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How well both models predict given texts, as a score: 1 is word for word, 0 no better than by how often each
    letter stands in them, below 0 worse than that. change: tuned − base, paired by text. letters: what a guess by the
    letters' frequencies costs, nats per token; a score is 1 − cost/letters.
    """

    base: float
    tuned: float
    change: Interval
    letters: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """The two models on one set of texts.

    name: "on task", "off task", "its own words" (the tuned model's samples), "the base's words". forward is None on
    samples of the tuned model, reverse on the base's: the mean over the other's samples estimates nothing. new_mass:
    the tuned model's mean probability of tokens that the base does not have. delta: mean log-prob (tuned − base) of
    the text's tokens. flips: tokens whose likeliest token changed; sure_flips: those beyond the rounding's reach.
    sampled: on samples whose KL is not exact, the mean log-ratio of the sampled tokens, an estimate without bias of the
    KL in the direction that belongs to them. by_document: id → tokens, and the sum of their forward KL (reverse, on
    samples of the tuned model); what a later audit of the same texts is paired with. prediction: of given texts, that
    neither model wrote. bits_per_byte: of two models that have no tokens in common; then `tokens` is None, and bytes is
    what was scored.
    """

    name: str
    source: str
    kind: Kind = "exact"
    documents: int
    tokens: int | None
    bytes: int | None = None
    cut: int = 0
    non_finite: int = 0
    forward: Tail | None = None
    reverse: Tail | None = None
    sampled: Interval | None = None
    by_document: dict[str, tuple[int, float]] = field(default_factory=dict)
    jensen_shannon: Interval | None = None
    delta: Interval | None = None
    prediction: Prediction | None = None
    same_top1: Interval | None = None
    flips: int | None = None
    sure_flips: int | None = None
    rank: Interval | None = None
    entropy_base: Interval | None = None
    entropy_tuned: Interval | None = None
    new_mass: float | None = None
    bits_per_byte: tuple[float, float] | None = None
    domains: list[Part] = field(default_factory=list)
    classes: list[Part] = field(default_factory=list)
    confidence: list[Part] = field(default_factory=list)
    positions: list[Part] = field(default_factory=list)
    moved: list[Token] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The numerical noise floor, nats per token: the same model against itself, by what was varied."""

    value: float
    by: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardsticks:
    """A KL in things a person can feel. four_bit: mean forward KL of the base against itself in 4 bits."""

    times_floor: float | None = None
    four_bit: float | None = None
    four_bit_scheme: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a side's own samples look: a number by name (distinct_4, length, refusals, markup, …) with its unit."""

    base: dict[str, float | None]
    tuned: dict[str, float | None]
    units: dict[str, str]
    openings: dict[str, list[tuple[str, int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One prompt with what each side wrote."""

    prompt: str
    base: str
    tuned: str
    score_base: float | None = None
    score_tuned: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One task, both sides on the same items. role: "task" (what was trained for), "sibling" of it, or "other".

    change: tuned − base, paired by item; of all that are not "task" the intervals hold together. "unclear": too few
    items to tell. family: its tasks are siblings. could_lose: whether the least score on every item would be "LOST".
    """

    name: str
    role: Literal["task", "sibling", "other"]
    source: str
    base: float
    tuned: float
    change: Interval
    outcome: Outcome
    family: str | None = None
    could_lose: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of the verdict, quoted with its numbers. met: None where it could not be judged."""

    text: str
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    verdict: Verdict
    because: str
    conditions: list[Condition]
    losses: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate of the command line. passed: None where what it compares was not measured (that fails too, exit 2)."""

    text: str
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Everything one `kleash drift` found.

    partial: why it ended before all was measured; None if it did not. failed: that was an error.
    """

    base: Side
    tuned: Side
    parity: Parity
    floor: Floor | None
    distributions: list[Distribution]
    yardsticks: Yardsticks
    style: Style | None
    pairs: list[Pair]
    scores: list[Score]
    judgement: Judgement
    gates: list[Gate]
    forgetting: str | None
    set_id: str | None
    set_hash: str | None
    command: str
    seed: int
    seconds: float
    versions: dict[str, str]
    made: str
    partial: str | None = None
    failed: bool = False
    schema: int = AUDIT_SCHEMA
