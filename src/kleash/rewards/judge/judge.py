"""A judge: which of two answers is better, as a probability, or how good one is; remembered, counted, never guessed."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kleash.models.smollm2 import cache_root
from kleash.records import Prompt
from kleash.rewards.judge.answers import Backend, Said, Verdict, verdict
from kleash.rewards.judge.cache import Cache, key_of
from kleash.rewards.judge.function import Function
from kleash.rewards.judge.local import Local
from kleash.rewards.judge.questions import FIRST, SECOND, TIE, Question, grade, pair, said
from kleash.rewards.judge.report import Report, made
from kleash.rewards.judge.server import Server
from kleash.rewards.judge.spec import JudgeSpec, judge_spec, kind_of, rubric_text

#: The file of verdicts in kleash's cache directory.
CACHE_NAME = "judge.sqlite"


class Preference(NamedTuple):
    """probability: that a is better; None where a verdict is missing, and `reasons` say why.

    shown_first, shown_second: the same with a shown first, and shown second (None where only one order was asked).
    tie: probability that neither is better, where ties are allowed. mass: smallest probability on the verdicts.
    """

    probability: float | None
    shown_first: float | None
    shown_second: float | None
    tie: float | None
    mass: float | None
    reasons: tuple[str, ...]


class Grade(NamedTuple):
    """value: expected grade; None where there is no verdict."""

    value: float | None
    mass: float | None
    reasons: tuple[str, ...]


@dataclass
class Tally:
    """What happened since it was last told."""

    questions: int = 0
    remembered: int = 0
    requests: int = 0
    retries: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)
    masses: list[float] = field(default_factory=list)
    orders: list[tuple[float, float, str]] = field(default_factory=list)
    ties: int = 0


class Judge:
    """A backend with a rubric. Not for use by several threads at once."""

    def __init__(self, name: str, spec: JudgeSpec, backend: Backend, cache: Cache | None = None) -> None:
        self.name, self.spec, self.backend, self.cache = name, spec, backend, cache
        self.rubric = rubric_text(spec.rubric)
        self._tally = Tally()

    @classmethod
    def load(cls, name: str, args: dict[str, Any], device: str = "cpu") -> "Judge":
        """The judge of a `use = "judge:NAME"` with its args.

        Raises:
            UsageError: there is no such model or variable, something is wrong in the args, or a key is among them.
            RunError: the model's weights are not whole.
        """
        spec = judge_spec(args)
        spec.check_for(name)
        rubric_text(spec.rubric)
        match kind_of(name):
            case "server":
                backend: Backend = Server.at(name, spec)
            case "function":
                backend = Function.load(name)
            case _:
                backend = Local.load(name, spec, device)
        return cls(name, spec, backend, _cache(spec, remembered=kind_of(name) != "function"))

    def compare(
        self,
        prompts: Sequence[Prompt],
        firsts: Sequence[str],
        seconds: Sequence[str],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Preference]:
        """How likely firsts[i] is the better answer to prompts[i] than seconds[i].

        Args:
            progress: called with how many questions are answered, and of how many.
        """
        rows = list(zip(prompts, firsts, seconds, strict=True))
        both = [((p, a, b), (p, b, a)) if self.spec.swap else ((p, a, b),) for p, a, b in rows]
        flat = [pair(self.rubric, *one, ties=self.spec.ties) for orders in both for one in orders]
        found = iter(self._verdicts(flat, progress))
        preferences = [self._preference([next(found) for _ in orders]) for orders in both]
        for (prompt, _, _), one in zip(rows, preferences, strict=True):
            if one.shown_first is not None and one.shown_second is not None:
                self._tally.orders.append((one.shown_first, one.shown_second, said(prompt)))
            self._tally.ties += one.tie is not None and one.tie > 0.5
        return preferences

    def grade(self, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[Grade]:
        """The expected grade of each answer, from 1 to spec.grades."""
        asked = [grade(self.rubric, p, a, self.spec.grades) for p, a in zip(prompts, answers, strict=True)]
        return [
            Grade(
                None if v.weights is None else math.fsum(int(word) * w for word, w in v.weights.items()),
                v.mass,
                () if v.reason is None else (v.reason,),
            )
            for v in self._verdicts(asked, None)
        ]

    @property
    def asked(self) -> bool:
        return self._tally.questions > 0

    def report(self) -> Report:
        """What happened since the last report."""
        tally, self._tally = self._tally, Tally()
        return made(tally, self.spec)

    def _preference(self, orders: list[Verdict]) -> Preference:
        """From the verdicts on a pair, in the order a b, and then, if it was asked, b a."""
        wins = [
            None if v.weights is None else v.weights[word] + v.weights.get(TIE, 0.0) / 2
            for v, word in zip(orders, (FIRST, SECOND), strict=False)
        ]
        known = [w for w in wins if w is not None]
        whole = len(known) == len(orders)
        masses = [v.mass for v in orders if v.mass is not None]
        ties = [v.weights.get(TIE, 0.0) for v in orders if v.weights is not None]
        return Preference(
            probability=math.fsum(known) / len(known) if whole else None,
            shown_first=wins[0],
            shown_second=wins[1] if len(wins) > 1 else None,
            tie=math.fsum(ties) / len(ties) if whole and self.spec.ties else None,
            mass=min(masses, default=None),
            reasons=tuple(v.reason for v in orders if v.reason is not None),
        )

    def _verdicts(self, questions: list[Question], progress: Callable[[int, int], None] | None) -> list[Verdict]:
        """Of each question, over its samples."""
        samples = self.spec.samples
        asked = [question._replace(sample=n) for question in questions for n in range(samples)]
        answers = self._ask(asked, progress)
        each = [verdict(a, q.words, self.spec.least_mass) for a, q in zip(answers, asked, strict=True)]
        self._tally.questions += len(asked)
        self._tally.failures.update(v.reason for v in each if v.reason is not None)
        self._tally.masses += [v.mass for v in each if v.mass is not None]
        return [together(each[i : i + samples]) for i in range(0, len(each), samples)]

    def _ask(self, questions: list[Question], progress: Callable[[int, int], None] | None) -> list[Said]:
        """The answer to each, remembered or new. New ones are written down as they come."""
        keys = [key_of(self.backend.identity, question) for question in questions]
        known = self.cache.find(list(dict.fromkeys(keys))) if self.cache else {}
        self._tally.remembered += sum(key in known for key in keys)
        missing = {key: question for key, question in zip(keys, questions, strict=True) if key not in known}
        began = time.perf_counter()
        for done, (key, one) in enumerate(_answered(self.backend, missing), 1):
            known[key] = one
            if self.cache and not one.lost:
                self.cache.keep(key, one)
            self._tally.requests += one.tries
            self._tally.retries += one.tries - 1
            self._tally.tokens_in += one.tokens_in
            self._tally.tokens_out += one.tokens_out
            if progress:
                progress(done, len(missing))
        self._tally.seconds += time.perf_counter() - began
        return [known[key] for key in keys]


def _answered(backend: Backend, missing: dict[str, Question]) -> Iterator[tuple[str, Said]]:
    keys = list(missing)
    if not keys:
        return
    with closing(backend.ask(list(missing.values()))) as answers:  # a server's requests end with it
        for i, one in answers:
            yield keys[i], one


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of several samples of one answer: the mean over those that gave a verdict; the first reason where none did."""
    known = [v for v in verdicts if v.weights is not None]
    if not known:
        return verdicts[0]
    first = known[0].weights
    assert first is not None
    weights = {word: math.fsum(v.weights[word] for v in known if v.weights) / len(known) for word in first}
    return Verdict(weights, min((v.mass for v in known if v.mass is not None), default=None))


def _cache(spec: JudgeSpec, *, remembered: bool) -> Cache | None:
    """A function of the user's own is asked anew unless a file is named: nobody knows when it has changed."""
    if spec.cache is False or (spec.cache is True and not remembered):
        return None
    return Cache.open(cache_root() / CACHE_NAME if spec.cache is True else Path(str(spec.cache)).expanduser())
