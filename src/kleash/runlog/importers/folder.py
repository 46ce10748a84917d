"""What a directory holds that may be a log: looked for a few levels down, the newest first."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kleash.runlog.importers.rollouts import is_samples

#: No directory is searched deeper, nor beyond so many files.
DEEPEST, MOST_FILES = 4, 20_000
_SKIPPED = re.compile(r"checkpoint-\d+|global_step_?\d+|\..*|__pycache__|node_modules")
_TEXTS = (".jsonl", ".log", ".txt", ".out", ".csv", ".tsv")


@dataclass(slots=True)
class Folder:
    """Files by kind, the newest first. wandb: by run, whose files are in order, one more for each time that it was
    resumed; events: the event files of one run, in order; metrics: of prime-rl's parts.

    event_runs: how many runs have event files.
    """

    wandb: list[list[Path]] = field(default_factory=list)
    databases: list[Path] = field(default_factory=list)
    events: list[Path] = field(default_factory=list)
    metrics: list[Path] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)
    samples: list[Path] = field(default_factory=list)
    event_runs: int = 0


def searched(path: Path) -> Folder:
    folder, events, offline = Folder(), dict[Path, list[Path]](), dict[str, list[Path]]()
    for file in _files(path):
        name = file.name
        if name.endswith(".wandb"):
            offline.setdefault(name, []).append(file)  # run-ID.wandb
        elif name.endswith(".db"):
            folder.databases.append(file)
        elif "tfevents" in name:
            events.setdefault(file.parent, []).append(file)
        elif is_samples(file):
            folder.samples.append(file)
        elif name == "metrics.jsonl":
            folder.metrics.append(file)
        elif name.endswith(_TEXTS) and file.parent == path:
            folder.texts.append(file)
    for files in (folder.databases, folder.texts):
        files.sort(key=_age, reverse=True)
    folder.wandb = [sorted(files, key=_age) for files in offline.values()]
    folder.wandb.sort(key=lambda files: _age(files[-1]), reverse=True)
    runs = sorted(events.values(), key=lambda files: max(map(_age, files)), reverse=True)
    if runs:
        folder.events = sorted(runs[0])
    folder.event_runs = len(runs)
    return folder


def _files(path: Path) -> Iterator[Path]:
    count = 0
    for here, folders, names in os.walk(path):
        depth = len(Path(here).relative_to(path).parts)
        folders[:] = sorted(name for name in folders if depth < DEEPEST and not _SKIPPED.fullmatch(name))
        for name in sorted(names):
            yield Path(here) / name
        count += len(names)
        if count > MOST_FILES:
            return


def _age(path: Path) -> tuple[float, str]:
    """By the time of its last change; where a copy made all the same, by name (loggers put the time there)."""
    try:
        return path.stat().st_mtime, path.name
    except OSError:
        return 0.0, path.name
