"""`kleash.drift`: from two names to an audit. Nothing is shown or written here but what is asked for."""

import datetime
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

import kleash
from kleash.drift import gates, remote, stages, store, verdict
from kleash.drift.builtin import SET_ID, builtin_set, digest
from kleash.drift.question import Gates, Question, Show, Silent
from kleash.drift.records import Audit, Gate, Parity, Side
from kleash.drift.scores.assess import assess, check_names
from kleash.drift.scores.task import Task
from kleash.drift.scoring import asked, elsewhere, scores
from kleash.drift.sources import Asked, open_pair
from kleash.drift.stages import EndedError, Found, Work
from kleash.drift.texts import read_texts
from kleash.errors import KleashError, UsageError

#: The order in which things are measured: what ends early has the most telling ones.
STAGES: tuple[Callable[[Work], None], ...] = (
    stages.noise_floor,
    stages.off_task,
    stages.on_task,
    scores,
    stages.own_words,
    stages.yardsticks,
)
PACKAGES = ("torch", "transformers", "peft")


def audit(question: Question, show: Show | None = None) -> Audit:
    """One audit, measured and judged.

    Ctrl-C ends it early, and so does an error: what is measured by then is judged and marked `partial` (and `failed`).

    Raises:
        UsageError: a model, a file or an option cannot be meant; nothing was measured.
        RunError: nothing could be measured.
        KeyboardInterrupt: Ctrl-C before anything was measured.
    """
    show, began, found = show or Silent(), time.perf_counter(), Found()
    tasks = checked(question)
    show.stage("opening both models")
    if remote.is_url(question.base) or remote.is_url(question.tuned):
        sides = remote.open_sides(question)
        early = ended(lambda: served(question, sides, found, show), found)
        both, tokens = (remote.record(sides[0]), remote.record(sides[1])), remote.parity(sides)
    else:
        how = Asked(device=question.device, template=question.template, trust_remote_code=question.trust_remote_code)
        pair = open_pair(question.base, question.tuned, how)
        work = Work(question, tasks, pair, found, show)
        early = ended(lambda: measured(work), found)
        both, tokens = (pair.base.record, pair.tuned.record), pair.parity
        if pair.compared.why_not is not None:
            tokens = replace(tokens, notes=[*tokens.notes, pair.compared.why_not])
    return judged(question, both, tokens, found, time.perf_counter() - began, early)


def measured(work: Work) -> None:
    """Stage after stage; of two models without a token in common the one that there is."""
    for stage in STAGES if work.pair.compared.why_not is None else (stages.bytes_only, scores):
        stage(work)


def served(question: Question, sides: remote.Sides, found: Found, show: Show) -> None:
    remote.measure(question, sides, found, show)
    if results := elsewhere(question):
        found.scores = assess(results, seed=question.seed)


class Early(NamedTuple):
    """Why an audit ended before all was measured. failed: by an error."""

    why: str
    failed: bool = False


def ended(measure: Callable[[], None], found: Found) -> Early | None:
    """Measures, and says why not to the end; None if to the end.

    Raises:
        KeyboardInterrupt, KleashError: before anything was found.
    """
    try:
        measure()
    except EndedError as end:
        return Early(str(end))
    except (KeyboardInterrupt, KleashError) as end:
        if not found.distributions and not found.scores:
            raise
        failed = isinstance(end, KleashError)
        return Early(f"{end if failed else 'stopped by Ctrl-C'}: what is missing was not measured", failed)
    return None


def checked(question: Question) -> tuple[Task, ...]:
    """The tasks. What cannot be read is said before anything is opened or measured."""
    if question.gates.against is not None:
        store.read(question.gates.against)
    if question.texts is not None:
        read_texts(question.texts)
    found = tuple(asked(question))
    check_names([*(result.name for result in elsewhere(question)), *(task.name for task in found)])
    return found


def judged(
    question: Question, sides: tuple[Side, Side], parity: Parity, found: Found, seconds: float, early: Early | None
) -> Audit:
    """The verdict and the gates on what was found."""
    made = Audit(
        base=sides[0],
        tuned=sides[1],
        parity=parity,
        floor=found.floor,
        distributions=found.distributions,
        yardsticks=found.yardsticks,
        style=found.style,
        pairs=found.pairs,
        scores=found.scores,
        judgement=verdict.judge(found.distributions, found.scores, found.floor),
        gates=[],
        forgetting=verdict.forgetting(found.distributions, found.floor),
        set_id=SET_ID,
        set_hash=digest(builtin_set()),
        command=question.command,
        seed=question.seed,
        seconds=seconds,
        versions={"kleash": kleash.__version__, "python": platform.python_version()}
        | {p: version(p) for p in PACKAGES},
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        partial=None if early is None else early.why,
        failed=early is not None and early.failed,
    )
    return replace(made, gates=passed(question.gates, made))


def passed(asked: Gates, made: Audit) -> list[Gate]:
    """Every gate; one that cannot be judged is said so, for by now the audit is measured."""
    found = gates.judge(
        made,
        max_kl=asked.max_kl,
        max_p99=asked.max_p99,
        min_top1=asked.min_top1,
        no_regression=asked.no_regression,
    )
    if asked.against is not None:
        try:
            found += gates.judge(made, against=store.read(asked.against))
        except UsageError as error:
            found.append(Gate(text=str(error), passed=None))
    return found
