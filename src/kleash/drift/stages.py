"""The measurements of an audit one after the other, the most telling first: what ends early has that."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kleash.drift import records, words
from kleash.drift.builtin import SET_ID
from kleash.drift.byte_scores import measure_bytes
from kleash.drift.cache import StateCache
from kleash.drift.compare import Hooks, measure
from kleash.drift.distribution import Author, distribution, distribution_of_bytes
from kleash.drift.floor import measure_floor
from kleash.drift.question import Question, Show
from kleash.drift.samples import side_by_side
from kleash.drift.scores.task import Task
from kleash.drift.sources import Pair
from kleash.drift.style import style
from kleash.drift.table import Document, TokenTable
from kleash.drift.texts import Text, builtin_texts, in_turn, prepared, read_texts
from kleash.drift.yardsticks import measure_yardsticks

#: A token that one model draws takes about as long as so many that both read (SmolLM2, 2 cores).
DRAWN = 1.5
OFF, ON, OWN, BASES = "off task", "on task", "its own words", "the base's words"


class EndedError(Exception):
    """The audit was asked to stop; what is found so far stands."""


@dataclass
class Found:
    """What is measured so far. heard: the models' answers to the task's prompts, which are read as well."""

    distributions: list[records.Distribution] = field(default_factory=list)
    floor: records.Floor | None = None
    reach: float = 0.0
    yardsticks: records.Yardsticks = field(default_factory=records.Yardsticks)
    style: records.Style | None = None
    pairs: list[records.Pair] = field(default_factory=list)
    scores: list[records.Score] = field(default_factory=list)
    heard: "Written | None" = None


class Written(NamedTuple):
    """Both models' samples after the same prompts."""

    base: list[Document]
    tuned: list[Document]


@dataclass(frozen=True, slots=True)
class Work:
    """One audit under way: what is asked, the tasks of it, the pair, what is found, and who is told."""

    question: Question
    tasks: tuple[Task, ...]
    pair: Pair
    found: Found
    show: Show

    def add(self, documents: Sequence[Document], name: str, source: str, author: Author | None = None) -> None:
        """Measures these documents; raises EndedError with what is measured of them kept."""
        self.show.stage(name)
        table = self.measured(documents, StateCache.default() if self.question.effort.cache and not author else None)
        made = distribution(table, name=name, source=source, author=author, seed=self.question.seed)
        self.found.distributions.append(made)
        if table.partial is not None:
            raise EndedError(f"{name}: {table.partial}")

    def sampled(self, prompts: Sequence[Text], source: str) -> Written:
        """Both models' samples, one of each prompt."""
        effort, found = self.question.effort, {}
        for side in ("base", "tuned"):
            self.show.stage(f"samples of {side}, {source}")
            found[side] = words.samples(
                self.pair,
                prompts[: effort.samples],
                side,
                max_new_tokens=effort.max_new_tokens,
                seed=self.question.seed,
                progress=self.show.progress,
            )
        return Written(found["base"], found["tuned"])

    def hear(self, written: Written, names: tuple[str, str], source: str) -> None:
        """Reads each model's samples with both: the tuned model's under the first name, the base's under the second."""
        if written.tuned:
            self.add(written.tuned, names[0], f"samples of the tuned model, prompts of {source}", "tuned")
        if written.base:
            self.add(written.base, names[1], f"samples of the base, prompts of {source}", "base")

    def look(self, written: Written) -> None:
        """How both write, and their samples side by side."""
        self.found.style = style(written.base, written.tuned)
        self.found.pairs += side_by_side(written.base, written.tuned)

    def to_draw(self) -> float:
        """What is drawn, and then read, in tokens that both models read: at most, for answers may end sooner."""
        effort = self.question.effort
        sets = 2 if self.question.tasks or self.question.texts else 1
        samples = 2 * sets * effort.samples * effort.max_new_tokens
        answers = sum(2 * len(task) * task.max_new_tokens for task in self.tasks)
        return samples * (DRAWN + 1) + answers * DRAWN

    def measured(self, documents: Sequence[Document], cache: StateCache | None) -> TokenTable:
        first = not self.found.distributions
        tokens = sum(len(document.ids) for document in documents)
        hooks = Hooks(
            estimate=lambda seconds: self.show.estimate(seconds * (1 + self.to_draw() / tokens)) if first else None,
            progress=self.show.progress,
        )
        return measure(self.pair, documents, reach=self.found.reach, cache=cache, hooks=hooks)


def noise_floor(work: Work) -> None:
    work.show.stage("noise floor")
    work.found.floor, work.found.reach = measure_floor(work.pair, off_task_documents(work))


def off_task_documents(work: Work) -> list[Document]:
    return prepared(builtin_texts(), work.pair, work.question.effort.tokens)


def off_task(work: Work) -> None:
    work.add(off_task_documents(work), OFF, SET_ID)


def on_task(work: Work) -> None:
    """The user's texts, where they have something to score; prompts alone are answered by the models (`own_words`)."""
    source = work.question.texts
    texts = [] if source is None else [text for text in read_texts(source) if text.answer.strip()]
    if texts and source is not None:
        work.add(prepared(texts, work.pair, work.question.effort.tokens), ON, source)


def own_words(work: Work) -> None:
    """Each model's samples after the task's prompts, or after the built-in set's where there is no task.

    The base's after the task's prompts are the texts "on task" where the user gave none with answers.
    """
    source, prompts = task_prompts(work.question)
    if not work.question.effort.samples:
        return
    if not prompts:
        written = work.sampled(in_turn(builtin_texts()), SET_ID)
        work.look(written)
        work.hear(written, (OWN, BASES), SET_ID)
        return
    written = work.found.heard or work.sampled(prompts, source)
    known = any(each.name == ON for each in work.found.distributions)
    work.hear(written, (OWN, BASES if known else ON), source)
    if work.found.heard is None:
        work.found.pairs += side_by_side(written.base, written.tuned)
    work.look(work.sampled(in_turn(builtin_texts()), SET_ID))


def sampled_prompts(question: Question) -> tuple[str, list[Text]]:
    """The user's own prompts, else the built-in set's, a domain after the other; as many as there are samples."""
    source, prompts = task_prompts(question)
    source, prompts = (source, prompts) if prompts else (SET_ID, in_turn(builtin_texts()))
    return source, prompts[: question.effort.samples]


def task_prompts(question: Question) -> tuple[str, list[Text]]:
    """Prompts of the user's own, and where they are from: of the texts, else of the task."""
    for source in (question.texts, *(task.file for task in question.tasks[:1])):
        found = [] if source is None else [text for text in read_texts(source) if text.prompt]
        if found:
            return str(source), found
    return "", []


def yardsticks(work: Work) -> None:
    off = next((each for each in work.found.distributions if each.name == OFF), None)
    if not work.question.effort.yardsticks or off is None or off.forward is None:
        return
    work.show.stage("yardsticks")
    before, after = off.entropy_base, off.entropy_tuned
    cooler = before is not None and after is not None and after.value < before.value
    work.found.yardsticks = measure_yardsticks(
        work.pair, off_task_documents(work), off.forward.mean.value, cooler=cooler, floor=work.found.floor
    )


def bytes_only(work: Work) -> None:
    """Of two models without a token in common."""
    texts = in_turn(builtin_texts())
    work.show.stage("bits per byte")
    table = measure_bytes(work.pair, texts)
    work.found.distributions.append(distribution_of_bytes(table, name=OFF, source=SET_ID))
