"""A training log as the rules look at it: columns in one unit, texts measured, windows in rows."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kleash.monitor import texts
from kleash.monitor.causal import Floats
from kleash.records import Target, Unit
from kleash.runlog.series import SampleText, TrainLog

Measured = dict[tuple[str, int, Hashable], float]

#: Rows that a baseline is taken from: few, so that a run that breaks early is not its own baseline.
WARM_UP = 8
#: Of the first so many steps with samples the texts are read; of as many again every second, of twice as many every
#: fourth, and so on: which are read does not depend on how many there will be.
ALL_READ = 512


def _is_read(number: int) -> bool:
    return number % (1 << (number // ALL_READ).bit_length()) == 0


@dataclass(frozen=True)
class View:
    """One log and what was asked of it. budget: a ceiling on kl_ref that the person gave.

    measured: of texts that an earlier look at the same log measured, by measure, step and the mark of its samples.
    """

    log: TrainLog
    budget: Target | None = None
    measured: Measured = field(default_factory=dict)
    _cache: dict[str, Floats | None] = field(default_factory=dict)
    _samples: dict[int, list[SampleText]] = field(default_factory=dict)

    def column(self, name: str) -> Floats | None:
        """A column in which at least one row holds a number."""
        return self.log.column(name)

    def family(self, prefix: str) -> dict[str, Floats]:
        return {name: x for name, x in self.log.family(prefix).items() if np.isfinite(x).any()}

    @property
    def rows(self) -> int:
        return len(self.log.step)

    def step(self, row: int) -> int:
        return int(self.log.step[row])

    def around(self, within: int, row: int, last: int) -> int:
        """± rows about a row as ± steps, none of them after row `last`."""
        low, high = max(row - within, 0), min(row + within, last)
        return max(self.step(row) - self.step(low), self.step(high) - self.step(row), 1)

    @cached_property
    def kl(self) -> Floats | None:
        """kl_ref in nats per token, where it is known; else per sequence by the lengths."""
        found = self.column("kl_ref")
        if found is not None:
            return found
        sequence, length = self.column("kl_ref_sequence"), self.column("length")
        return None if sequence is None or length is None else sequence / length

    @cached_property
    def kl_sequence(self) -> Floats | None:
        """kl_ref in nats per sequence."""
        found = self.column("kl_ref_sequence")
        if found is not None:
            return found
        token, length = self.column("kl_ref"), self.column("length")
        return None if token is None or length is None else token * length

    def kl_in(self, unit: Unit) -> Floats | None:
        return self.kl if unit == "nats/token" else self.kl_sequence

    @property
    def kl_of_target(self) -> Floats | None:
        """kl_ref in the unit of the run's target; None where there is no target, or no KL in its unit."""
        return None if self.log.target_unit is None else self.kl_in(self.log.target_unit)

    @cached_property
    def held_out(self) -> dict[str, Floats]:
        """Every score that the run is not trained on: held out, and known to be true."""
        return self.family("held_out/") | {f"gold {name}": x for name, x in self.family("gold/").items()}

    @cached_property
    def sampled(self) -> tuple[int, ...]:
        """The steps whose samples are read."""
        return tuple(step for number, step in enumerate(self.log.sample_steps) if _is_read(number))

    def _read(self, steps: Iterable[int]) -> None:
        missing = tuple(step for step in steps if step not in self._samples)
        if missing:
            self._samples.update((step, []) for step in missing)
            for sample in self.log.samples(missing):
                self._samples.setdefault(sample.step, []).append(sample)

    def text(self, name: str) -> Floats | None:
        """A measure of the samples' texts by row: as logged, else measured here (`texts.MEASURES`)."""
        logged = self.column(name)
        if logged is not None:
            return logged
        if name not in self._cache:
            self._cache[name] = self._measured(name)
        return self._cache[name]

    def _measured(self, name: str) -> Floats | None:
        if not self.sampled:
            return None
        marks = self.log.sample_marks
        known = {step: self.measured.get((name, step, marks[step])) for step in self.sampled if step in marks}
        self._read(step for step in self.sampled if known.get(step) is None)
        values = np.full(self.rows, np.nan)
        for step in self.sampled:
            found = known.get(step)
            if found is None:
                taken = texts.MEASURES[name](self._samples[step])
                found = np.nan if taken is None else taken
                if step in marks:
                    self.measured[name, step, marks[step]] = found
            row = int(np.searchsorted(self.log.step, step))
            if row < self.rows and self.log.step[row] == step:
                values[row] = found
        return values if np.isfinite(values).any() else None

    def quotes(self, row: int, most: int = 3) -> list[str]:
        """Completions of the nearest step with samples at or before the row."""
        before = [step for step in self.sampled if step <= self.step(row)]
        self._read(before[-1:])
        return [sample.completion for sample in self._samples[before[-1]][:most]] if before else []
