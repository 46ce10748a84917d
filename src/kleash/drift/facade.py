"""`kleash.audit`: an audit from Python, as `kleash drift` makes one."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from kleash.drift import api, files, several
from kleash.drift.question import Effort, Gates, Question, tasks
from kleash.drift.result import Drift
from kleash.errors import RunError, UsageError

#: What `settings` may say besides the fields of `Effort`.
MORE = ("siblings", "lm_eval", "template", "device", "trust_remote_code", "seed")


def audit(
    base: str | Path,
    tuned: str | Path,
    *,
    task: str | Path | None = None,
    score: str | Callable[..., Any] | None = None,
    texts: str | Path | None = None,
    gates: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Drift:
    """How far `tuned` moved from `base`, and whether it was worth it.

    Args:
        base: the model before.
        tuned: the model after. Either is a directory, a hub id, kleash:tiny, kleash:smollm2, an adapter, a run (its
            best checkpoint), a .gguf.
        task: a file of prompts of what it was tuned for.
        score: what judges an answer, a name as in [[rewards]] use or
            a function (prompts, completions, **columns) → list of float or None.
        texts: a file of texts of your own, or of prompts with or without answers.
        gates: {"max_kl": {"off": 0.05}, "max_p99": …, "min_top1": …, "no_regression": True, "against": "last.json"}.
        out: a directory for drift.html, drift.json, card.md and badge.svg; left out, nothing is written.
        settings: anything else of the command line by name: {"tokens": 8000, "samples": 32, "seed": 1,
            "siblings": ["formal.jsonl=./reward.py:formal"]}.

    Raises:
        UsageError: something asked for is wrong; nothing was measured.
        RunError: it could not be measured, or not to the end; what was measured is in `out`, marked partial.
    """
    given = dict(settings or {})
    effort = {field.name: given.pop(field.name) for field in fields(Effort) if field.name in given}
    unknown = sorted(given.keys() - set(MORE)) + sorted((gates or {}).keys() - {field.name for field in fields(Gates)})
    if unknown:
        known = [*(field.name for field in fields(Effort)), *MORE]
        raise UsageError(f"unknown setting or gate {unknown[0]!r}; settings are {', '.join(known)}")
    siblings = given.pop("siblings", ())
    question = Question(
        base=several.chosen(str(base)),
        tuned=several.chosen(str(tuned)),
        tasks=tasks(None if task is None else str(task), score, siblings),
        texts=None if texts is None else str(texts),
        effort=Effort(**effort),
        gates=Gates(**(gates or {})),
        command=_command(base, tuned, effort),
        **given,
    )
    if out is not None:
        files.check_place(Path(out))
    found = Drift(api.audit(question))
    if out is not None:
        found.save(out)
    if found.audit.failed:
        raise RunError(found.audit.partial)
    return found


def _command(base: str | Path, tuned: str | Path, effort: Mapping[str, Any]) -> str:
    """What measures the KL again from the command line; a task's score may be a function, which no command can name."""
    words = ["kleash", "drift", str(base), str(tuned)]
    for name in ("tokens", "samples", "max_new_tokens", "items"):
        if effort.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(effort[name])]
    return shlex.join(words if effort.get("builtin_tasks", True) else [*words, "--no-tasks"])
