"""Samples in JSONL: verl's rollout_data_dir, NeMo-RL's train_data_step files, ms-swift's completions.jsonl."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kleash.errors import RunError
from kleash.runlog.importers.files import lines, open_log, placed_lines
from kleash.runlog.importers.numbers import number
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.trl_files import as_text
from kleash.runlog.importers.vocabulary import Raw, Samples
from kleash.runlog.series import SampleText

#: The sign of a run of which only the rollouts are left.
ALONE = "scores of rollouts alone"
_FILE = re.compile(r"(?:train_data_step)?(\d{1,18})\.jsonl")
_COMPLETIONS = "completions.jsonl"
_STEP = re.compile(rb'\{"step": \["?(\d{1,18})"?[,\]]')


def is_samples(path: Path) -> bool:
    """By its name: one step's samples, or all in one file; not the scores on held-out prompts."""
    return path.name == _COMPLETIONS or (bool(_FILE.fullmatch(path.name)) and "val" not in path.parent.name.lower())


def samples_in(paths: Sequence[Path]) -> tuple[tuple[int, ...], Samples]:
    """Steps and reader of the sample files: of several folders, those of the one with the most."""
    tables = [path for path in paths if path.name == _COMPLETIONS]
    if tables:
        places = _places(tables[0])
        return tuple(sorted(places)), lambda wanted: _from_tables(tables[0], places, wanted)
    folders: dict[Path, dict[int, Path]] = {}
    for path in paths:
        if match := _FILE.fullmatch(path.name):
            folders.setdefault(path.parent, {})[int(match[1])] = path
    files = max(folders.values(), key=len, default={})
    return tuple(sorted(files)), lambda wanted: _from_files(files, wanted)


def read_scores(paths: Sequence[Path]) -> Raw:
    """A run of which only the rollouts are left: their scores by step.

    Raises:
        RunError: no score in them.
    """
    steps, samples = samples_in(paths)
    where = paths[0].parent
    table = Table(str(where))
    for step in steps:
        scores = [one.score for one in samples((step,)) if one.score is not None and math.isfinite(one.score)]
        if scores:
            mean = math.fsum(scores) / len(scores)
            spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
            table.add(step, [("reward", mean), ("reward_std", spread)])
    if not len(table.steps):
        raise RunError(f"{where} has samples without a score, and no log beside them")
    note = "no log of the trainer is here: reward and its spread are from the samples' scores"
    return Raw(
        path=where,
        table=table,
        container="rollouts",
        marks={ALONE},
        notes=[note],
        sample_steps=steps,
        samples=samples,
    )


def _from_files(files: dict[int, Path], wanted: tuple[int, ...] | None) -> list[SampleText]:
    """A torn last line is left out.

    Raises:
        RunError: another line is damaged.
    """
    found = []
    for step in sorted(files if wanted is None else set(wanted) & files.keys()):
        for number_, line, ended in lines(files[step]):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not ended:
                    break
                raise RunError(f"{files[step]}, line {number_}, is no JSON: {error}") from None
            if isinstance(row, dict):
                found += _sample(step, row)
    return found


def _sample(step: int, row: dict[str, Any]) -> list[SampleText]:
    """verl: input, output, score; NeMo-RL: content, rewards; else prompt, completion. Without a text it is none."""
    score = next((number(row[key]) for key in ("score", "reward", "rewards") if key in row), None)
    prompt = next((row[key] for key in ("input", "prompt") if key in row), "")
    completion = next((row[key] for key in ("output", "completion", "response", "content") if key in row), None)
    if completion is None:
        return []
    return [SampleText(step=step, prompt=as_text(prompt), completion=as_text(completion), score=score)]


def _places(path: Path) -> dict[int, list[int]]:
    """Where the tables of each step begin in completions.jsonl."""
    places: dict[int, list[int]] = {}
    for at, line in placed_lines(path):
        if line.endswith(b"\n") and (match := _STEP.match(line)):
            places.setdefault(int(match[1]), []).append(at)
    return places


def _from_tables(path: Path, places: dict[int, list[int]], wanted: tuple[int, ...] | None) -> list[SampleText]:
    found = []
    with open_log(path) as file:
        for step in sorted(places if wanted is None else set(wanted) & places.keys()):
            for at in places[step]:
                file.seek(at)
                for row in _rows(path, file.readline()):
                    found += _sample(step, row)
    return found


def _rows(path: Path, line: bytes) -> Iterator[dict[str, Any]]:
    """The rows of a table that is kept by column. score: the sum of the columns that are rewards."""
    try:
        table = json.loads(line)
        count = len(table["completion"])
        names = [name for name, column in table.items() if isinstance(column, list) and len(column) == count]
        for index in range(count):
            row = {name: table[name][index] for name in names}
            if "score" not in row and "reward" not in row:
                others = (number(value) for name, value in row.items() if name not in ("step", "advantages", "entropy"))
                scores = [value for value in others if value is not None and math.isfinite(value)]
                row["score"] = math.fsum(scores) if scores else None
            yield row
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error}") from error
