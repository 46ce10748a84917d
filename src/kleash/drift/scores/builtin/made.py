"""What the built-in tasks have in common: one user message an item, and a check of each answer."""

from collections.abc import Callable, Sequence
from typing import Any

from kleash.drift.scores.task import Task

#: Items of a task that is written by a program.
ITEMS = 42


def task(
    name: str,
    family: str,
    items: Sequence[tuple[str, Any]],
    right: Callable[[str, Any], bool],
    *,
    max_new_tokens: int,
) -> Task:
    """A task from (question, what is wanted) pairs. right: answer, what is wanted → whether it is right."""
    wanted = [want for _, want in items]

    def judge(answers: Sequence[str]) -> list[float | None]:
        return [float(right(answer, want)) for answer, want in zip(answers, wanted, strict=True)]

    return Task(
        name=name,
        source="built in, likeliest answers",
        ids=tuple(f"{name.replace(' ', '-')}-{number:02d}" for number in range(1, len(items) + 1)),
        prompts=tuple([{"role": "user", "content": question}] for question, _ in items),
        judge=judge,
        max_new_tokens=max_new_tokens,
        family=family,
        greedy=True,
    )
