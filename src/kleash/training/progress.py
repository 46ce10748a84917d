"""What a run shows while it trains: a live panel on a terminal, one plain line a step anywhere else (in a notebook ten
lines in all).

Everything a model or a prompt wrote is shown as plain text: no markup, no control codes.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kleash.characters import printable
from kleash.records import Prompt, Reading, Step, Target
from kleash.runlog.schema import Evaluation

#: prompt, completion, score
Sample = tuple[Prompt, str, float | None]

UNMEASURED = "–"
HISTORY = 60  # steps that a sparkline shows
PACE = 20  # steps whose mean duration predicts the rest


class Progress:
    """Use as a context manager around the loop; `update` once a step, `notice` for anything worth a sentence.

    Example:
        with Progress() as progress:
            for step in steps:
                progress.update(step, ("The film was", " lovely.", 0.6), total_steps=300)
    """

    def __init__(self, console: Console | None = None) -> None:
        self._notebook = console is None and in_notebook()
        self._console = console or own_console()
        self._history = _History()
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            with unheard():
                self._live.stop()

    def update(self, step: Step, sample: Sample | None, total_steps: int) -> None:
        """Show this step; `sample` is one of its completions, as (prompt, completion, score)."""
        self._history.add(step)
        with unheard():
            if self._live:
                self._live.update(panel(step, sample, total_steps, self._history))
            elif not self._notebook or tenth(step.step, total_steps):
                self._print(plain_line(step, total_steps))

    def notice(self, text: str) -> None:
        """A sentence for the user, kept above the live panel."""
        with unheard():
            self._print(printable(text))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def in_notebook() -> bool:
    return Console().is_jupyter


def own_console() -> Console:
    """Standard output. A notebook is no terminal, whatever its kernel says: nothing there is written over."""
    return Console(force_jupyter=False, force_terminal=False) if in_notebook() else Console()


def tenth(step: int, total: int) -> bool:
    """Whether a step begins a tenth of the run: what a notebook, which keeps all lines, is shown."""
    return step * 10 // total != (step - 1) * 10 // total


@contextmanager
def unheard() -> Iterator[None]:
    """A closed terminal or pipe ends no run: all that is shown is in the log. (rich exits where a pipe is closed.)"""
    with suppress(OSError, SystemExit):
        yield


@dataclass(slots=True)
class _History:
    kl: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    score: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    beta: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE))

    def add(self, step: Step) -> None:
        reading = leash(step)
        self.kl.append(reading.value if reading else None)
        self.score.append(step.score)
        self.beta.append(step.beta)
        if "total" in step.seconds:
            self.seconds.append(step.seconds["total"])


def leash(step: Step | Evaluation) -> Reading | None:
    """The KL to the reference in the unit of the target; per sequence where there is no target."""
    per_token = step.target is not None and Target.parse(step.target).unit == "nats/token"
    return step.kl_ref_token if per_token else step.kl_ref


def plain_line(step: Step, total_steps: int) -> str:
    """One step on one line, for logs and pipes."""
    parts = [
        f"step {step.step:>{len(str(total_steps))}}/{total_steps}",
        f"score {number(step.score, '.3f')}",
        kl_text(step),
        f"beta {step.beta:.4g}",
        f"entropy {number(step.entropy, '.2f')}",
        f"len {number(step.length, '.1f')}",
        f"{number(step.seconds.get('total'), '.2f')} s",
    ]
    if step.controller_held:
        parts.append(f"beta held: {printable(step.controller_held)}")
    return "  ".join(parts)


def evaluation_line(done: Evaluation) -> str:
    """An evaluation on one line, to stand between those of the steps."""
    error = "" if done.score_error is None else f"±{done.score_error:.3f}"
    parts = [
        f"held out after {done.step} steps",
        f"score {number(done.score, '.3f')}{error}",
        kl_text(done),
        f"len {number(done.length, '.1f')}",
        f"cut {number(done.truncated, '.0%')}",
        f"{done.n_prompts} prompts, {done.how}",
    ]
    return "  ".join(parts)


def kl_text(step: Step | Evaluation) -> str:
    """ "KL 3.91±0.22 nats/sequence (target 4)"."""
    reading = leash(step)
    target = Target.parse(step.target) if step.target else None
    aim = f" (target {target.value:g})" if target else ""
    if reading is None:
        return f"KL {UNMEASURED}{aim}"
    digits = ".4f" if reading.unit == "nats/token" else ".2f"
    error = "" if reading.standard_error is None else f"±{reading.standard_error:{digits}}"
    return f"KL {reading.value:{digits}}{error} {reading.unit}{aim}"


def panel(step: Step, sample: Sample | None, total_steps: int, history: _History) -> RenderableType:
    """The live view: how far, the KL against its target, the reward, beta, and one sample."""
    reading, target = leash(step), Target.parse(step.target) if step.target else None
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column()
    rows.add_column(no_wrap=True)
    rows.add_row("KL", Text(kl_text(step).removeprefix("KL ")), gauge(reading, target))
    rows.add_row("", "", Text(sparkline(history.kl)))
    spread = "" if step.score_std is None else f" ± {step.score_std:.3f} over samples"
    rows.add_row("reward", Text(number(step.score, ".3f") + spread), Text(sparkline(history.score)))
    price = "" if step.price is None else f"   price {step.price:.3g}"
    rows.add_row("beta", Text(f"{step.beta:.4g}{price}"), Text(sparkline(history.beta)))
    if step.controller_held:
        rows.add_row("", Text(f"beta held: {printable(step.controller_held)}", style="yellow"))
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(f"step {step.step}/{total_steps}", style="bold"),
        ProgressBar(total=total_steps, completed=step.step + 1, width=30),
        Text(f"{duration_left(step, total_steps, history.seconds)} left"),
        Text(f"{number(step.tokens_per_second, ',.0f')} tokens/s", style="dim"),
    )
    return Group(head, rows, *([sample_text(sample)] if sample else []))


def sample_text(sample: Sample) -> Text:
    """The sample on two lines at most; `Text` never reads markup in it."""
    prompt, completion, score = sample
    opening = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    return Text.assemble(
        (f"{number(score, '+.2f')}  ", "bold"),
        (shorten(printable(opening), 80, keep_end=True) + " ", "dim"),
        shorten(printable(completion), 160),
    )


def gauge(reading: Reading | None, target: Target | None, width: int = 30) -> Text:
    """A bar from 0 to twice the target, the target marked in its middle."""
    if reading is None or target is None:
        return Text("")
    ratio = reading.value / target.value
    filled = round(min(max(ratio / 2, 0.0), 1.0) * width)
    colour = "green" if 0.75 <= ratio <= 1.25 else "yellow" if ratio <= 2 else "red"
    cells = ["█" if i < filled else "·" for i in range(width)]
    cells.insert(width // 2, "│")
    return Text("".join(cells), style=colour)


def sparkline(values: Sequence[float | None] | deque[float | None]) -> str:
    """Eight heights between the smallest and the largest value; a space where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    heights = "▁▂▃▄▅▆▇█"
    return "".join(
        " " if value is None else heights[int((value - low) / span * 7.999)] if span else heights[3] for value in values
    )


def duration_left(step: Step, total_steps: int, seconds: Sequence[float] | deque[float]) -> str:
    if not seconds:
        return UNMEASURED
    left = round(sum(seconds) / len(seconds) * max(0, total_steps - step.step - 1))
    hours, minutes = left // 3600, left % 3600 // 60
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {left % 60:02d} s"


def number(value: Any, form: str) -> str:
    return UNMEASURED if value is None else format(value, form)


def shorten(text: str, most: int, *, keep_end: bool = False) -> str:
    if len(text) <= most:
        return text
    return "…" + text[1 - most :] if keep_end else text[: most - 1] + "…"
