"""Scores that lm-evaluation-harness wrote of both models, paired item by item. Reads its files, needs none of its code.

It writes results_DATE.json and, with --log_samples, samples_TASK_DATE.jsonl beside it: one row an item and filter, with
doc_id, doc_hash, target_hash, and the metrics by name.
"""

import json
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.drift.scores.task import Result, Role
from kleash.errors import UsageError

#: Of several metrics of a task the first of these that it has is taken, else the first of its own.
PREFERRED = ("exact_match", "acc_norm", "acc")


@dataclass(frozen=True, slots=True)
class _Output:
    """One model's. date: as its files' names have it."""

    path: Path
    date: str
    tree: dict[str, Any]

    def samples(self, task: str) -> Path:
        return self.path.with_name(f"samples_{task}_{self.date}.jsonl")

    @property
    def tasks(self) -> list[str]:
        """Those with items; groups have none."""
        return [task for task in self.tree["results"] if task in self.tree.get("n-samples", {})]


def lm_eval_results(
    base: str | Path, tuned: str | Path, *, task: str | None = None, siblings: Collection[str] = ()
) -> list[Result]:
    """All tasks that both models were evaluated on.

    Args:
        base, tuned: what was given as --output_path, or a results file in it; of several the last.
        task: what the model was trained for. siblings: of that.

    Raises:
        UsageError: no results, no items, items or settings that differ, a task that is not there.
    """
    sides = _output(base), _output(tuned)
    both = [name for name in sides[0].tasks if name in sides[1].tasks]
    if not both:
        raise UsageError(f"{base} and {tuned} have no task of lm-evaluation-harness in common")
    for name in (() if task is None else (task,), siblings):
        wrong = next((one for one in name if one not in both), None)
        if wrong is not None:
            raise UsageError(f"lm-evaluation-harness has no results of {wrong} for both models; it has {_some(both)}")
    groups = sides[0].tree.get("group_subtasks", {})
    families = {one: group for group, names in groups.items() for one in names}
    found = []
    for name in both:
        role: Role = "task" if name == task else "sibling" if name in siblings else "other"
        found.append(_paired(name, sides, role, families.get(name)))
    return found


def _output(where: str | Path) -> _Output:
    path = Path(where).expanduser()
    files = [path] if path.is_file() else sorted(path.rglob("results*.json"), key=lambda file: file.name)
    if not files:
        raise UsageError(
            f"{where} has no results*.json; run lm_eval with --output_path {where} --log_samples for each model"
        )
    try:
        tree = json.loads(files[-1].read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{files[-1]} is not JSON: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("results"), dict):
        raise UsageError(f"{files[-1]} is not a results file of lm-evaluation-harness: it has no results")
    return _Output(files[-1], files[-1].stem.partition("_")[2], tree)


def _paired(task: str, sides: tuple[_Output, _Output], role: Role, family: str | None) -> Result:
    shots = [side.tree.get("n-shot", {}).get(task) for side in sides]
    versions = [side.tree.get("versions", {}).get(task) for side in sides]
    if shots[0] != shots[1] or versions[0] != versions[1]:
        raise UsageError(
            f"{task} was not asked alike: {shots[0]} shots of version {versions[0]} for the base, {shots[1]} of "
            f"{versions[1]} for the tuned model"
        )
    rows = [_rows(side.samples(task), task) for side in sides]
    metric = _metric(task, rows[0][0], sides[0].tree)
    chosen = rows[0][0].get("filter", "none")
    before, after = (_by_item(some, chosen, side.samples(task)) for some, side in zip(rows, sides, strict=True))
    ids = [one for one in before if one in after]
    if not ids:
        raise UsageError(f"{task}: the two evaluations have no item in common, by doc_id and doc_hash")
    said = f"lm-evaluation-harness {metric}" + ("" if chosen == "none" else f", {chosen}")
    missing = len(before) + len(after) - 2 * len(ids)
    return Result(
        name=task,
        source=said + (f"; {missing} items of only one model left out" if missing else ""),
        role=role,
        family=family,
        ids=tuple(doc for doc, *_ in ids),
        base=tuple(_number(before[one].get(metric)) for one in ids),
        tuned=tuple(_number(after[one].get(metric)) for one in ids),
    )


def _rows(path: Path, task: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UsageError(f"there is no {path.name} beside the results: run lm_eval with --log_samples")
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(f"{path} is not JSON, a row a line: {error}") from error
    if not rows or not all(isinstance(row, dict) and "doc_id" in row and "doc_hash" in row for row in rows):
        raise UsageError(f"{path} has no items of {task} with doc_id and doc_hash")
    return rows


def _metric(task: str, row: dict[str, Any], tree: dict[str, Any]) -> str:
    """The metric that is compared: a number for each item, and more is better."""
    better = tree.get("higher_is_better", {}).get(task, {})
    names = [name for name in row.get("metrics", better) if better.get(name) is not False and _is_number(row.get(name))]
    if not names:
        raise UsageError(f"{task} has no metric with a number for each item of which more is better")
    return next((name for name in PREFERRED if name in names), names[0])


def _by_item(rows: list[dict[str, Any]], chosen: str, path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The rows of the chosen filter by (doc_id, doc_hash, target_hash)."""
    found = {}
    for row in rows:
        if row.get("filter", "none") == chosen:
            item = (str(row["doc_id"]), str(row["doc_hash"]), str(row.get("target_hash")))
            if item in found:
                raise UsageError(f"{path}: the item {item[0]} stands twice")
            found[item] = row
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
