"""A task of the user's own: a file of prompts, and what scores an answer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kleash.drift.scores.task import Role, Task
from kleash.errors import UsageError
from kleash.records import Prompt
from kleash.rewards.load import load_reward
from kleash.rewards.score import score
from kleash.rewards.spec import RewardSpec
from kleash.training.prompt_files import read_rows


def own_task(
    file: str | Path,
    scorer: RewardSpec | str | Callable[..., Any],
    *,
    role: Role = "task",
    name: str | None = None,
    max_new_tokens: int = 64,
    device: str = "cpu",
) -> Task:
    """Both models are scored on the prompts of `file` by the very function that a reward is.

    Args:
        file: as `kleash train` reads prompts: "prompt" (text or messages) in each row, other columns go to the score;
            "id", where there is one, names the item.
        scorer: "./reward.py:polite", "exact", …, or a function (prompts, completions, **columns) → list of float or
            None.
        name: as reports call it; the scorer's own without.
        device: where a reward model runs.

    Raises:
        UsageError: nothing to read, a row without a prompt, or a scorer that cannot be loaded.
    """
    prompts, columns = _prompts(read_rows(file), str(file))
    rewarder = load_reward(scorer, device=device)
    ids = tuple(map(str, columns.get("id", range(len(prompts)))))
    if len(set(ids)) < len(ids):
        raise UsageError(f"{file}: an id stands twice; each row needs one of its own, or none")

    def judge(answers: Sequence[str]) -> list[float | None]:
        return score([rewarder], prompts, answers, columns, trial=True).total

    return Task(
        name=name or rewarder.name,
        source=str(file),
        ids=ids,
        prompts=tuple(prompts),
        judge=judge,
        max_new_tokens=max_new_tokens,
        role=role,
    )


def _prompts(rows: Sequence[Any], file: str) -> tuple[list[Prompt], dict[str, list[Any]]]:
    """The prompts, and every other column."""
    if not rows:
        raise UsageError(f"{file} has no prompts; give it a row for each")
    if all(isinstance(row, str) for row in rows):
        return list(rows), {}
    names = set(rows[0]) if isinstance(rows[0], dict) else set()
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or "prompt" not in row:
            raise UsageError(f'{file}, row {number}: a row of a task needs a "prompt", and this is {row!r:.60}')
        if set(row) != names:
            raise UsageError(f"{file}, row {number} has the columns {sorted(row)} and row 0 has {sorted(names)}")
    others = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return [row["prompt"] for row in rows], others
