"""Calling code that may hang: in a thread of its own, so that the caller always gets control back."""

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any


class HungError(Exception):
    """The call had not returned in time; it goes on in its daemon thread, which ends with the process."""

    def __init__(self, frame: FrameType | None) -> None:
        super().__init__("no answer in time")
        self.stack = traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()


def call(function: Callable[[], Any], seconds: float) -> Any:
    """What `function` returns, awaited if it is awaitable; with its exception if it raises.

    The thread makes a running event loop of the caller (a notebook's) irrelevant. With seconds = 0 there is no limit
    and the call stays on this thread, for code that must (signals, some GUI and CUDA libraries).

    Raises:
        HungError: it took longer than `seconds`. Code that holds the interpreter lock without end, such as a regular
            expression that backtracks exponentially, cannot be left behind: Python gives no other thread a turn.
    """
    if seconds > 0:
        return _in_thread(lambda: _awaited(function()), min(seconds, threading.TIMEOUT_MAX))
    result = function()
    return _in_thread(lambda: _awaited(result), None) if inspect.isawaitable(result) else result


def _in_thread(function: Callable[[], Any], seconds: float | None) -> Any:
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["result"] = function()
        except BaseException as error:  # also SystemExit: a reward that exits must not vanish in silence
            outcome["error"] = error

    thread = threading.Thread(target=work, name="kleash-reward", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HungError(sys._current_frames().get(thread.ident or -1))
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _awaited(result: Any) -> Any:
    async def wait(awaitable: Awaitable[Any]) -> Any:
        return await awaitable

    return asyncio.run(wait(result)) if inspect.isawaitable(result) else result
