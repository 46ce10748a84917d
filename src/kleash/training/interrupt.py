"""Ctrl-C as a wish: the first one is noted, so that the step in progress can be finished and saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_asked() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C was pressed inside; a second one raises KeyboardInterrupt at once.

    Outside the main thread signals cannot be handled, and Ctrl-C does what it always does.
    """
    wished = threading.Event()

    def note(number: int, frame: Any) -> None:
        if wished.is_set():
            raise KeyboardInterrupt
        wished.set()

    if threading.current_thread() is not threading.main_thread():
        yield wished.is_set
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield wished.is_set
    finally:
        signal.signal(signal.SIGINT, before)
