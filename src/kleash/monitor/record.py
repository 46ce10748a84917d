"""How often the monitor has been right on runs whose truth is known, so that a verdict can say so."""

from dataclasses import dataclass

from kleash.intervals import wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Each figure is so many of so many.

    false_alarms: simulated healthy runs that got a warning or an alarm; found: simulated gamed ones, of families that
    no rule was tuned on, that did; real_found, real_warned: the same of real runs of the tiny model, gamed and healthy.
    """

    false_alarms: tuple[int, int]
    found: tuple[int, int]
    real_found: tuple[int, int]
    real_warned: tuple[int, int]

    @property
    def most_false(self) -> float:
        """The upper end of the 95 % interval of the share of false alarms (Wilson)."""
        hits, runs = self.false_alarms
        return wilson(hits / runs, runs)[1]


#: docs/runs/watch-rates.md and docs/runs/watch-real.md; tests/monitor/test_rates.py compares.
RECORD = Record(false_alarms=(5, 500), found=(45, 50), real_found=(14, 14), real_warned=(2, 13))
