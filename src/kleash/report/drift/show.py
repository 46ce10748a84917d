"""How an audit goes on, while it does: a bar on a terminal, a line for each stage anywhere else."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

#: Where there is no bar, a long stage says how far it is after so many seconds.
EVERY_S = 30.0


class Shown:
    """`kleash.drift.question.Show` on a console; a context manager around the audit."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task, self._stage, self._said = None, "", time.monotonic()
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)

    def __enter__(self) -> "Shown":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def stage(self, name: str) -> None:
        self._stage, self._said = name, time.monotonic()
        if self._bar is None:
            self._console.print(f"{name} …", markup=False, highlight=False)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=None)

    def estimate(self, seconds: float) -> None:
        self._console.print(f"about {spoken(seconds)} in all", highlight=False)

    def progress(self, done: int, total: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif self._bar is None and time.monotonic() - self._said > EVERY_S:
            self._said = time.monotonic()
            self._console.print(f"{self._stage}: {done:,} of {total:,}", markup=False, highlight=False)


def spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
