"""A task: prompts, and what judges an answer. Who writes the answers is the caller's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from kleash.errors import RunError
from kleash.records import Prompt

Role = Literal["task", "sibling", "other"]


@runtime_checkable
class Generate(Protocol):
    """One model's answers, one a prompt, in their order. Greedy, or drawn with the same noise for both models."""

    def __call__(self, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Attributes:
    name: as reports call it. source: where it is from, for people.
    role: "task" for what the model was trained for, "sibling" of that, or "other".
    ids: of each item; unique. prompts: text or messages.
    judge: answers, one a prompt → their scores, None where an answer cannot be judged. Pure.
    max_new_tokens: of an answer. greedy: each answer is the model's likeliest; else one that it draws.
    family: tasks of one family are each other's siblings.
    """

    name: str
    source: str
    ids: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    judge: Callable[[Sequence[str]], Sequence[float | None]]
    max_new_tokens: int
    role: Role = "other"
    family: str | None = None
    greedy: bool = False

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What both models made of one task, item by item; None where one could not be judged. ids: as of the task.

    base_texts, tuned_texts: their answers; empty where another program had them judged.
    """

    name: str
    source: str
    role: Role
    ids: tuple[str, ...]
    base: tuple[float | None, ...]
    tuned: tuple[float | None, ...]
    family: str | None = None
    base_texts: tuple[str, ...] = ()
    tuned_texts: tuple[str, ...] = ()


def answered(task: Task, base: Generate, tuned: Generate) -> Result:
    """Both models' answers to every item, judged.

    Raises:
        RunError: a model gave another number of answers, or the judge another number of scores.
    """
    texts = [tuple(side(task.prompts, max_new_tokens=task.max_new_tokens)) for side in (base, tuned)]
    _as_many(task, "answers", texts)
    scores = [tuple(task.judge(side)) for side in texts]
    _as_many(task, "scores", scores)
    return Result(
        name=task.name,
        source=task.source,
        role=task.role,
        family=task.family,
        ids=task.ids,
        base=scores[0],
        tuned=scores[1],
        base_texts=texts[0],
        tuned_texts=texts[1],
    )


def _as_many(task: Task, what: str, found: Sequence[Sequence[object]]) -> None:
    wrong = next((len(one) for one in found if len(one) != len(task)), None)
    if wrong is not None:
        raise RunError(f"the task {task.name} has {len(task)} prompts and got {wrong} {what}")
