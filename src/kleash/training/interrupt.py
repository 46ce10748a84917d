"""Being asked to stop as a wish: the first Ctrl-C, SIGTERM or SIGHUP is noted, so that the step can be finished."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Ctrl-C, `kill` and a scheduler's notice, a closed terminal (Windows has no such signal).
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class SignalledError(KeyboardInterrupt):
    """Stopped by a signal that is not Ctrl-C (see `stopped_code`)."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def stop(number: int) -> KeyboardInterrupt:
    """What to raise for this signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else SignalledError(number)


def stopped_code(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was stopped: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
    return 128 + (stop.number if isinstance(stop, SignalledError) else signal.SIGINT)


@contextmanager
def stop_asked() -> Iterator[Callable[[], KeyboardInterrupt | None]]:
    """Gives a function that says what to raise once a stop was asked for; a second signal raises it at once.

    Outside the main thread signals cannot be handled, and they do what they always do. A signal that is ignored from
    outside stays ignored: `nohup` means it.
    """
    wished: list[int] = []

    def note(number: int, frame: Any) -> None:
        wished.append(number)
        if len(wished) > 1:
            raise stop(number)

    with _handled(note):
        yield lambda: stop(wished[0]) if wished else None


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise inside, as Ctrl-C does, so that what was begun is ended in `finally` clauses."""

    def end(number: int, frame: Any) -> None:
        raise stop(number)

    with _handled(end):
        yield


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, was in before.items():
        if was is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in before.items():
            if was is not signal.SIG_IGN:
                signal.signal(number, was)
