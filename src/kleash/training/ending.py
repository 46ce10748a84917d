"""How a run that cannot go on is left: what is whole is saved, and the log says why."""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from kleash.errors import NotFiniteError, RunError
from kleash.runlog.schema import RunEnd
from kleash.training.interrupt import SignalledError
from kleash.training.job import Sinks
from kleash.training.recovery import Recovery


@runtime_checkable
class Ending(Protocol):
    """What it needs to know of the state: see `kleash.training.job.Progressing`."""

    step: int
    unmoved: bool
    saved: int
    recovery: Recovery


def end_badly(state: Ending, sinks: Sinks, error: BaseException, save: Callable[[], None]) -> None:
    """Saves what is whole and logs why the run ended. What fails here is said; the first error is the one raised."""
    try:
        broken = state.recovery.in_a_row or isinstance(error, NotFiniteError)
        if state.unmoved and state.step > state.saved and not broken:
            save()
    except RunError as second:
        sinks.say(str(second))
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, KeyboardInterrupt):
        reason = f"interrupted by {error}" if isinstance(error, SignalledError) else "interrupted"
    with suppress(RunError):  # a full disk holds no reason either; the report calls such a run unfinished
        sinks.events.write(RunEnd(reason=reason, step=state.step))
