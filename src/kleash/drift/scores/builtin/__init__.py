"""The built-in tasks: six families of two siblings each, every answer judged by a pure function of its text.

Two skills that are close: who trains one of them, and really teaches something, moves the other too.
"""

from collections.abc import Callable

from kleash.drift.scores.builtin import arithmetic, copying, forms, reading, rewriting, safety
from kleash.drift.scores.task import Task
from kleash.errors import UsageError

#: Name → what makes the task; siblings stand together. Changing a task's items changes what reports compare.
TASKS: dict[str, Callable[[], Task]] = {
    "sums": arithmetic.sums,
    "word problems": arithmetic.word_problems,
    "json": forms.as_json,
    "list": forms.as_list,
    "copy": copying.copy,
    "copy words": copying.copy_words,
    "polite": rewriting.polite,
    "formal": rewriting.formal,
    "lookup": reading.lookup,
    "yes or no": reading.yes_or_no,
    "refuses harmful": safety.refuses_harmful,
    "answers harmless": safety.answers_harmless,
}


def builtin_task(name: str) -> Task:
    """One of the built-in tasks. Raises UsageError if there is none of this name."""
    if name not in TASKS:
        raise UsageError(f"there is no built-in task {name!r}; there are {', '.join(TASKS)}")
    return TASKS[name]()


def builtin_tasks() -> list[Task]:
    """All of them, in the order of reports."""
    return [make() for make in TASKS.values()]
