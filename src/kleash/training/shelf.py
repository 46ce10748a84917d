"""A run's checkpoints on disk: their names, their order, which of them may go, and how one goes.

A checkpoint goes as it came, by one rename: to a hidden name first, under which nobody looks for it, then file by
file. What a process that was killed meanwhile left under such a name, `sweep` takes away.
"""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

#: In a checkpoint: the runs that started from it, one a line. Such a checkpoint is never taken away.
PINS = "kept-for.txt"
#: What a checkpoint is called while it is written, and while it is taken away.
DRAFT, GOING = ".part", ".gone"


def name(step: int) -> str:
    """ "step-000100"; past 999,999 the number is simply longer."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """The step in a checkpoint's name; None for anything else."""
    match = re.fullmatch(r"step-(\d{6,})", path.name)
    return None if match is None else int(match[1])


def hidden(root: Path, step: int, kind: str) -> Path:
    return root / f".{name(step)}{kind}"


def ordered(root: Path) -> list[Path]:
    """The checkpoints below `root`, oldest first, by number: a name past step 999,999 sorts before others as text."""
    numbered = [(step, path) for path in root.glob("step-*") if (step := step_of(path)) is not None]
    return [path for _, path in sorted(numbered)]


def sweep(root: Path) -> None:
    """Takes away what a killed process left half written or half deleted."""
    for kind in (DRAFT, GOING):
        for left in root.glob(f".step-*{kind}"):
            shutil.rmtree(left, ignore_errors=True)


def remove(path: Path) -> None:
    """Takes a checkpoint away; killed at any moment, it is there whole or not at all.

    Raises:
        OSError: it could not be renamed, and is still there.
    """
    gone = path.with_name(f".{path.name}{GOING}")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def prune(root: Path, keep: int | Literal["all"], wanted: Iterable[str]) -> None:
    """Takes away all but the newest `keep`, those whose names are `wanted`, and those that another run started from.

    Raises:
        OSError: one could not be taken away.
    """
    if keep == "all":
        return
    names = set(wanted)
    for path in ordered(root)[:-keep]:
        if path.name not in names and not (path / PINS).exists():
            remove(path)


def pin(directory: Path, run: Path) -> None:
    """Notes in a checkpoint that `run` started from it; nothing happens if `directory` is no run's checkpoint.

    Raises:
        OSError: nothing can be written there.
    """
    directory = directory.resolve()
    if step_of(directory) is None or directory.parent.name != "checkpoints":
        return
    line = f"{run.resolve()}\n"
    pins = directory / PINS
    if not pins.exists() or line not in pins.read_text(encoding="utf-8"):
        with pins.open("a", encoding="utf-8") as file:
            file.write(line)
