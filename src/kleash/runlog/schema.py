"""The run log's events and their JSON: one object a line, {"event": …, "schema": …, the record's fields}.

The number SCHEMA_VERSION rises when a field changes its meaning or goes away; a log with a higher one is refused. A
field or an event that is merely new does not raise it: a reader leaves out what it does not know.
Non-finite floats are the strings "NaN", "Infinity", "-Infinity", so that every line is valid JSON; a lone surrogate,
which no file can hold as text, is a question mark.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from kleash.errors import RunError
from kleash.records import Prompt, Reading, Step
from kleash.runlog.findings import Found
from kleash.runlog.judged import Judged
from kleash.runlog.offline import (
    OfflineEvaluation,
    OfflineStep,
    PairEvaluation,
    PairStep,
    ScoreEvaluation,
    ScoreStep,
    TextEvaluation,
    TextStep,
)
from kleash.runlog.plain import plain

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """First event of a run. config: fully resolved; versions by package; fingerprints of "policy" and "reference".

    plan: how a step goes through the model ("plan"), and what it was made for ("work"). verb: of the command line.
    """

    config: dict[str, Any]
    started: str
    verb: str = "train"
    versions: dict[str, str] = field(default_factory=dict)
    fingerprints: dict[str, Any] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    plan: dict[str, dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint is complete on disk. step: steps done before it, hence the number of the next one."""

    step: int
    path: str
    score: float | None = None
    kl_ref: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The policy after `step` updates on the held-out prompts, with the same noise at every evaluation of a run.

    how: how completions were drawn, for people; greedy: that they were the likeliest ones, whose KL is no mean over
    the policy's own samples. score_error: standard error of the mean score, clustered by prompt. target: the KL target
    in force. prompts: sha256 of the held-out prompts. length: mean counted tokens; truncated: share cut at the limit;
    tokens_forward: through the models.
    """

    step: int
    how: str
    n_prompts: int
    n_samples: int
    greedy: bool = False
    prompts: str | None = None
    score: float | None = None
    score_error: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    unscored: int = 0
    target: str | None = None
    kl_ref: Reading | None = None
    kl_ref_token: Reading | None = None
    kl_origin: Reading | None = None
    kl_origin_token: Reading | None = None
    length: float | None = None
    truncated: float | None = None
    seconds: float | None = None
    tokens_forward: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something said to the user. what: a short fixed word for the kind; step: None outside a step."""

    what: str
    text: str
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The run goes on from a checkpoint; `step` is computed next and all later records so far are void.

    config: fully resolved, as it is in force from here on.
    """

    step: int
    started: str | None = None
    config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """The policy was broken at `from_step`, and the run went back: `step` is computed next, all later records are void.

    why: what was not finite; learning_rate: the lower one it goes on with; number: how many there were, this included.
    """

    step: int
    from_step: int
    why: str
    learning_rate: float
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceChange:
    """From `step` on, the KL is measured from another reference.

    kind: "forced" on a resume that was asked to; "ema", "reset" or "stall": it moved, by the `share` of the policy that
    went into it. fingerprint: of the new one, as in RunStart.
    """

    step: int
    kind: str
    fingerprint: dict[str, Any]
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The run is over. reason: "finished", "budget", "interrupted", or why it stopped; step: steps done."""

    reason: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of samples.jsonl. kl_ref: nats per sequence, summed over its counted tokens; length: those tokens.

    disagreement: of each ensemble among the rewards, the standard deviation between its members' scores.
    """

    step: int
    prompt: Prompt
    completion: str
    score: float | None = None
    scores: dict[str, float | None] = field(default_factory=dict)
    disagreement: dict[str, float | None] = field(default_factory=dict)
    kl_ref: float | None = None
    length: int | None = None
    truncated: bool | None = None


Event = (
    RunStart
    | Step
    | Evaluation
    | Checkpoint
    | Notice
    | Resume
    | Rollback
    | ReferenceChange
    | Found
    | RunEnd
    | Sample
    | Judged
    | OfflineStep
    | OfflineEvaluation
)

EVENTS: dict[str, type[Event]] = {
    "run_start": RunStart,
    "step": Step,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
    "notice": Notice,
    "resume": Resume,
    "rollback": Rollback,
    "reference_change": ReferenceChange,
    "found": Found,
    "run_end": RunEnd,
    "sample": Sample,
    "judged": Judged,
    "text_step": TextStep,
    "text_evaluation": TextEvaluation,
    "pair_step": PairStep,
    "pair_evaluation": PairEvaluation,
    "score_step": ScoreStep,
    "score_evaluation": ScoreEvaluation,
}
_NAMES = {kind: name for name, kind in EVENTS.items()}


@cache
def _adapter(kind: type[Any]) -> Any:
    """Made when the first event of a kind is read: they cost more than the rest of the import, pydantic too."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def to_json(event: Event) -> str:
    """One line of JSON without its line end."""
    fields = plain(asdict(event))
    return json.dumps({"event": _NAMES[type(event)], "schema": SCHEMA_VERSION, **fields}, allow_nan=False)


def from_json(line: str | bytes) -> Event | None:
    """The event of a line; None if it is of a kind this version of kleash does not know.

    Raises:
        RunError: the line is not an event, or its schema is newer or older than this version of kleash reads.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:  # bad JSON and bad UTF-8
        raise RunError(f"this is not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("event"), str):
        raise RunError('this is not an event of a kleash run: it has no "event"')
    schema = fields.get("schema")
    if not isinstance(schema, int):
        raise RunError('this is not an event of a kleash run: it has no "schema" number')
    if schema > SCHEMA_VERSION:
        raise RunError(
            f"this is schema {schema}, and this version of kleash reads up to {SCHEMA_VERSION}; a newer kleash reads it"
        )
    kind = EVENTS.get(fields["event"])
    if kind is None:
        return None
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python({k: v for k, v in fields.items() if k not in ("event", "schema")})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        if schema < SCHEMA_VERSION:
            raise RunError(
                f"this is schema {schema}, which an older kleash wrote and this version (schema {SCHEMA_VERSION}) does "
                f"not read ({fields['event']}: {place}: {first['msg']}); read it with the version that wrote it"
            ) from error
        raise RunError(f"this {fields['event']} event does not fit its schema: {place}: {first['msg']}") from error


def current(events: Iterable[Event]) -> list[Event]:
    """The events of the line that led to the present: what a later resume made void is left out.

    Resume(step=k) voids steps, notices and samples numbered k or more, checkpoints, evaluations and moves of the
    reference after k, and so does Rollback(step=k). Of steps logged twice even so, the last counts.
    """
    kept: list[Event] = []
    for event in events:
        if isinstance(event, Resume | Rollback):
            kept = [earlier for earlier in kept if not _void(earlier, event.step)]
        kept.append(event)
    last = {event.step: i for i, event in enumerate(kept) if isinstance(event, Step | OfflineStep)}
    return [event for i, event in enumerate(kept) if not isinstance(event, Step | OfflineStep) or last[event.step] == i]


def last_of_each_step(events: Iterable[Event]) -> list[Step]:
    """The step records of `current(events)`, in the order of their steps."""
    return sorted((event for event in current(events) if isinstance(event, Step)), key=lambda step: step.step)


def offline_steps(events: Iterable[Event]) -> list[OfflineStep]:
    """The same of a run of `kleash sft`, `dpo` or `reward`."""
    return sorted((event for event in current(events) if isinstance(event, OfflineStep)), key=lambda step: step.step)


def offline_evaluations(events: Iterable[Event]) -> list[OfflineEvaluation]:
    """Their evaluations, in the order of the log."""
    return [event for event in current(events) if isinstance(event, OfflineEvaluation)]


def _void(event: Event, resumed: int) -> bool:
    match event:
        case Step() | Sample() | Judged() | Found() | TextStep() | PairStep() | ScoreStep():
            return event.step >= resumed
        case Notice():
            return event.step is not None and event.step >= resumed
        case Checkpoint() | Evaluation() | TextEvaluation() | PairEvaluation() | ScoreEvaluation():
            return event.step > resumed
        case ReferenceChange():
            return event.kind != "forced" and event.step > resumed
        case RunEnd():
            return True
        case _:
            return False
