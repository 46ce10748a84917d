"""What a run on rows shows: a live panel on a terminal, one plain line an update anywhere else (ten in a notebook)."""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from kleash.characters import printable
from kleash.training.progress import HISTORY, PACE, in_notebook, own_console, sparkline, tenth, unheard


class OfflineProgress:
    """Use as a context manager around the loop; `update` once a step, `notice` for anything worth a sentence."""

    def __init__(self, console: Console | None = None) -> None:
        self._notebook = console is None and in_notebook()
        self._console = console or own_console()
        self._losses: deque[float | None] = deque(maxlen=HISTORY)
        self._seconds: deque[float] = deque(maxlen=PACE)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> "OfflineProgress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with unheard():
                self._live.stop()

    def update(self, record: Any, words: Sequence[str], total: int) -> None:
        """Show this step: its record, and what its objective says of it."""
        self._losses.append(record.loss)
        self._seconds.append(record.seconds)
        left = sum(self._seconds) / len(self._seconds) * (total - record.step - 1)
        with unheard():
            if not self._live:
                if self._notebook and not tenth(record.step, total):
                    return
                step = f"step {record.step:>{len(str(total))}}/{total}"
                self._print("  ".join([step, *words, f"{record.seconds:.2f} s"]))
                return
            head = Text(f"step {record.step}/{total}  {left / 60:.0f} min left", style="bold")
            bar = ProgressBar(total=total, completed=record.step + 1, width=30)
            self._live.update(Group(head, bar, Text("  ".join(words)), Text(sparkline(self._losses))))

    def notice(self, text: str) -> None:
        """A sentence for the user, kept above the live panel."""
        with unheard():
            self._print(printable(text))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
