"""What a rule is, and how it says what it found."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from kleash.monitor.causal import Bools, Floats, episodes, onset
from kleash.monitor.view import View
from kleash.runlog.findings import Finding, NotEvaluated

Scanned = list[Finding] | NotEvaluated


@runtime_checkable
class Rule(Protocol):
    """A frozen dataclass whose fields are its thresholds. What it says at a row it has from rows up to there alone."""

    @property
    def name(self) -> str: ...

    def scan(self, view: View) -> Scanned:
        """Every episode, each once; or what the log would have needed."""
        ...


#: Rows without the condition, after which it is a new episode; and the most episodes of one rule that are told.
RELEASE, MOST = 20, 3


def findings(
    view: View,
    condition: Bools,
    *,
    hold: int,
    since: Floats,
    say: Callable[[int], dict[str, Any]],
    quote: bool = False,
) -> list[Finding]:
    """One finding an episode of `condition`.

    Args:
        hold: rows in a row that the condition must hold.
        since: the series whose change is dated.
        say: alarm row → the finding's own words and numbers.
        quote: add samples from before and after.
    """
    told: list[Finding] = []
    for row in episodes(condition, hold=hold, release=RELEASE)[:MOST]:
        began = onset(since, row)
        samples = {}
        if quote:
            samples = {"before": view.quotes(max(began.row - 1, 0)), "after": view.quotes(row)}
        told.append(
            Finding(
                alarm_step=view.step(row),
                since=view.step(began.row),
                within=view.around(began.within, began.row, row),
                **samples,
                **say(row),
            )
        )
    return told


def needs(rule: Rule, what: str) -> NotEvaluated:
    return NotEvaluated(rule=rule.name, needs=what)


def shown(value: float) -> float:
    """A number as it is shown: four digits."""
    return float(f"{value:.4g}")


def last_of(x: Floats, row: int) -> float:
    """The newest number at or before a row."""
    finite: Sequence[float] = [float(value) for value in x[: row + 1] if value == value]
    return finite[-1] if finite else float("nan")
