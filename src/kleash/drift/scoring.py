"""Both models' scores: the user's task and its siblings, another harness's, the built-in tasks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kleash.drift.question import Question
from kleash.drift.records import Pair as Sampled
from kleash.drift.scores.assess import assess
from kleash.drift.scores.builtin import builtin_tasks
from kleash.drift.scores.lm_eval import lm_eval_results
from kleash.drift.scores.task import Result, Task, answered
from kleash.drift.scores.yours import own_task
from kleash.drift.speaking import Speaker, shown
from kleash.drift.stages import Work, Written

SIDES = ("base", "tuned")


def scores(work: Work) -> None:
    """Every task, one after the other; those that are done count also where it ends early."""
    done: list[Result] = []
    try:
        done += elsewhere(work.question)
        # Two models without a token in common cannot answer with the same noise.
        for task in work.tasks if work.pair.compared.why_not is None else ():
            done.append(answer(work, task))
    finally:
        if done:
            work.found.scores = assess(done, seed=work.question.seed)


def elsewhere(question: Question) -> list[Result]:
    """What another harness has measured."""
    return [] if question.lm_eval is None else lm_eval_results(*question.lm_eval)


def asked(question: Question) -> Iterator[Task]:
    """What the model was tuned for first. A built-in task gives way to one of the user's that is called as it is."""
    scorers = [one.score for one in question.tasks]
    taken = set[str]()
    for one in question.tasks:
        alone = scorers.count(one.score) == 1  # else its prompts tell it apart
        task = own_task(
            one.file,
            one.score,
            role=one.role,
            name=None if alone else Path(one.file).stem,
            max_new_tokens=question.effort.max_new_tokens,
        )
        taken.add(task.name)
        yield task
    for task in builtin_tasks() if question.effort.builtin_tasks else ():
        called = f"built-in {task.name}" if task.name in taken else task.name
        yield replace(first(task, question.effort.items), name=called)


def first(task: Task, items: int | None) -> Task:
    """The task with so many of its items, the first ones."""
    rest = 0 if items is None else len(task) - items
    if rest <= 0:
        return task
    return replace(
        task,
        ids=task.ids[:items],
        prompts=task.prompts[:items],
        judge=lambda answers: task.judge([*answers, *[""] * rest])[:items],
    )


def answer(work: Work, task: Task) -> Result:
    """Both models' answers to one task, judged; those to what it was tuned for are kept, to be read and shown."""
    speakers = [Speaker(work=work, side=side, name=task.name, greedy=task.greedy) for side in SIDES]
    found = answered(task, *speakers)
    if task.role == "task":
        most = work.question.effort.samples
        work.found.heard = Written(speakers[0].heard[:most], speakers[1].heard[:most])
        work.found.pairs += [
            Sampled(prompt=shown(prompt), base=base, tuned=tuned, score_base=before, score_tuned=after)
            for prompt, base, tuned, before, after in zip(
                task.prompts, found.base_texts, found.tuned_texts, found.base, found.tuned, strict=True
            )
        ]
    return found
