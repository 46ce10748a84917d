"""What is asked of an audit: which two models, on what, how much of it, and who is told meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from kleash.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    tokens: of the off-task set, and of the user's own texts, at most; None: all. samples: of each model, 0: none.
    max_new_tokens: of a sample. builtin_tasks: whether the built-in verifiable tasks are scored too. items: of each of
    them at most; None: all; fewer than 25 give no interval. yardsticks:
    whether the KL is compared with the base in 4 bits and with a temperature. cache: whether the base's hidden states
    are kept on disk for the next tuned model.
    """

    tokens: int | None = None
    samples: int = 96
    max_new_tokens: int = 64
    builtin_tasks: bool = True
    items: int | None = None
    yardsticks: bool = True
    cache: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "items"):
            if (most := getattr(self, name)) is not None and most < 1:
                raise UsageError(f"{name} must be at least 1, not {most}")
        if self.samples < 0 or self.max_new_tokens < 1:
            raise UsageError(
                f"samples must be 0 or more and max_new_tokens 1 or more, not {self.samples} and {self.max_new_tokens}"
            )


#: The KL of a few texts, and nothing else.
QUICK = Effort(tokens=2000, samples=0, builtin_tasks=False, yardsticks=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A task to score both models on: prompts and what judges an answer.

    file: prompts, as `kleash train` reads them; other columns go to the score. score: "./reward.py:polite", "exact", …
    or a function (prompts, completions, **columns) → list of float or None. role: "task" for what the model was tuned
    for, "sibling" for a task like it.
    """

    file: str
    score: str | Callable[..., Any]
    role: Literal["task", "sibling"] = "task"


def tasks(file: str | None, score: str | Callable[..., Any] | None, siblings: Sequence[str]) -> tuple[Scored, ...]:
    """The task and its siblings, each "SCORE" (on the same prompts) or "FILE=SCORE".

    Raises:
        UsageError: prompts without a score or the other way round, or siblings of nothing.
    """
    if (file is None) != (score is None):
        raise UsageError("a task is its prompts and its score: give both --task FILE and --score ./reward.py:name")
    if file is None or score is None:
        if siblings:
            raise UsageError("--sibling is a task like the one of --task and --score; give these too")
        return ()
    found = [Scored(file=file, score=score)]
    for one in siblings:
        where, equals, what = one.partition("=")
        found.append(Scored(file=where if equals else file, score=what if equals else one, role="sibling"))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What fails an audit: as `kleash.drift.gates.judge` takes it. against: an earlier drift.json."""

    max_kl: Mapping[str, float] = field(default_factory=dict)
    max_p99: Mapping[str, float] = field(default_factory=dict)
    min_top1: Mapping[str, float] = field(default_factory=dict)
    no_regression: bool = False
    against: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One audit.

    base, tuned: names as `kleash.drift.sources.open_pair` takes them. tasks: what the model was tuned for, and
    siblings. lm_eval: directories with both models' outputs. texts: a file of the user's own. command: that asks the
    same again.
    """

    base: str
    tuned: str
    tasks: tuple[Scored, ...] = ()
    lm_eval: tuple[str, str] | None = None
    texts: str | None = None
    template: Literal["base", "tuned", "each"] = "tuned"
    device: str = "auto"
    trust_remote_code: bool = False
    seed: int = 0
    effort: Effort = field(default_factory=Effort)
    gates: Gates = field(default_factory=Gates)
    command: str = ""


@runtime_checkable
class Show(Protocol):
    """Who is told how it goes."""

    def stage(self, name: str) -> None:
        """What is measured next."""
        ...

    def estimate(self, seconds: float) -> None:
        """What all of it will take, as soon as that can be said."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Of the stage."""
        ...


@dataclass(frozen=True, slots=True)
class Silent:
    """Nobody is told."""

    def stage(self, name: str) -> None:
        pass

    def estimate(self, seconds: float) -> None:
        pass

    def progress(self, done: int, total: int) -> None:
        pass
