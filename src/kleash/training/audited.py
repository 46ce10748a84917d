"""A run's audit from its own directory: what it is compared with is the model that it began as. Loads torch late."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kleash.errors import UsageError
from kleash.runlog.schema import Event, RunStart

if TYPE_CHECKING:
    from kleash.drift.result import Drift


def audited(
    run_dir: Path,
    events: Sequence[Event],
    base: str | Path | None,
    *,
    tokens: int | None,
    task: str | Path | None,
    score: str | Callable[..., Any] | None,
    out: str | Path | None,
    settings: Mapping[str, Any] | None,
) -> "Drift":
    """`kleash.audit` of a run.

    Raises:
        UsageError: it is a run of a reward model, or names no model that it began as; nothing was measured.
        RunError: it could not be measured.
    """
    from kleash.drift.facade import audit

    given = dict(settings or {}) | ({} if tokens is None else {"tokens": tokens})
    return audit(base or _begun_as(run_dir, events), run_dir, task=task, score=score, out=out, settings=given)


def _begun_as(run_dir: Path, events: Sequence[Event]) -> str:
    start = next((event for event in events if isinstance(event, RunStart)), None)
    if start is not None and start.verb == "reward":
        raise UsageError(f"{run_dir} is a reward model: it writes nothing, so it has no KL to the model it began as")
    model = start.config.get("model") if start is not None else None
    named = model.get("policy") if isinstance(model, Mapping) else None
    if not isinstance(named, str):
        raise UsageError(f"the log of {run_dir} does not say which model it began as; name it: run.drift(base=…)")
    return named
