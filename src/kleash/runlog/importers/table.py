"""Rows of numbers by step, as a log has them: steps that repeat, go back or belong to two runs are settled here.

A number costs 12 bytes while the log is read. NaN is a number that the log holds as NaN or null; what it does not hold
is nowhere.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kleash.errors import RunError

Column = NDArray[np.float64]

#: More numbers than this would need memory without bound; naming the columns to read makes them few.
MOST_NUMBERS = 100_000_000
#: From so many steps back, or second values for a step, on, and from this share of the rows, two runs are mixed.
MIXED_LEAST, MIXED_SHARE, MOST_RESUMES = 10, 0.1, 1000


NEVER = -(2**62)


class _Series:
    """One key's values. highest: its highest step that counts, among the first `seen` rows."""

    __slots__ = ("highest", "rows", "seen", "values")

    def __init__(self) -> None:
        self.rows, self.values = array("i"), array("d")
        self.highest, self.seen = NEVER, 0


class Table:
    """Grows by `add`; afterwards `axis` and `column` give what counts.

    keep: only these keys are stored (None: all). notes: what was settled, for people.
    """

    def __init__(self, name: str, keep: frozenset[str] | None = None) -> None:
        self.name, self.keep, self.keys = name, keep, dict[str, _Series]()
        self.steps = array("q")
        self.numbers = 0
        self.resumes: list[tuple[int, int]] = []  # (step that came again, highest step that it made void)
        self.sorted_rows = self.second_values = 0
        self._top = NEVER
        self._voids: list[tuple[int, int]] = []  # (row, step): rows before it, from that step on, are void

    def add(self, step: int, items: Iterable[tuple[str, float]]) -> None:
        """One row: (key, value) pairs.

        Raises:
            RunError: two runs write alternately, or there are too many numbers.
        """
        if self.keep is not None:
            items = [(key, value) for key, value in items if key in self.keep]
        if step <= self._top:
            items = list(items)
            self._again(step, items)
        else:
            self._top = step
        self.append(step, items)

    def append(self, step: int, items: Iterable[tuple[str, float]]) -> None:
        """A row whose order the caller has settled: the last of a step counts.

        Raises:
            RunError: too many numbers, or a step that is none.
        """
        row, keys, count = len(self.steps), self.keys, 0
        try:
            self.steps.append(step)
        except OverflowError:
            raise RunError(f"{self.name} has a step numbered {step}: no run is so long") from None
        for count, (key, value) in enumerate(items, 1):  # noqa: B007 (how many there were)
            series = keys.get(key)
            if series is None:
                series = keys[key] = _Series()
            series.rows.append(row)
            series.values.append(value)
        self.numbers += count
        if self.numbers > MOST_NUMBERS:
            raise RunError(
                f"{self.name} holds over {MOST_NUMBERS // 1_000_000} million numbers; say which to read: "
                "--columns reward=KEY kl_ref=KEY:nats/token …"
            )

    @property
    def highest(self) -> int:
        """The last step so far; 0 before the first."""
        return max(self._top, 0)

    def next_source(self) -> None:
        """What comes now is another part of the same run, which counts from the start."""
        self._top = NEVER

    def void(self, step: int) -> None:
        """All rows so far numbered `step` or more do not count: the run went back to there."""
        while self._voids and self._voids[-1][1] >= step:
            self._voids.pop()
        self._voids.append((len(self.steps), step))
        self._top = min(self._top, step - 1)
        for series in self.keys.values():
            if self._highest(series) >= step:
                rows = np.frombuffer(series.rows, np.int32)
                series.highest = int(self._steps()[rows[self._counting()[rows]]].max(initial=NEVER))

    def axis(self, keys: Iterable[str]) -> NDArray[np.int64]:
        """The steps at which one of these keys has a value that counts, rising."""
        used = np.zeros(len(self.steps), bool)
        for key in keys:
            used[np.frombuffer(self.keys[key].rows, np.int32)] = True
        return np.unique(self._steps()[used & self._counting()])

    def column(self, key: str, axis: NDArray[np.int64]) -> Column:
        """The key's values on these steps, NaN where it has none; the last one of a step counts."""
        series = self.keys[key]
        rows = np.frombuffer(series.rows, np.int32)
        counting = self._counting()[rows]
        values = np.frombuffer(series.values, np.float64)[counting]
        steps = self._steps()[rows[counting]]
        place = np.searchsorted(axis, steps)
        inside = (place < len(axis)) & (axis[np.minimum(place, len(axis) - 1)] == steps) if len(axis) else place < 0
        dense = np.full(len(axis), np.nan)
        dense[place[inside]] = values[inside]  # NumPy: of repeated places the last is assigned
        return dense

    def notes(self) -> list[str]:
        """What was settled, a sentence each.

        Raises:
            RunError: too many steps have two different values to be one run's.
        """
        if self._mixed(self.second_values):
            raise RunError(
                f"{self.name} has two different values for {self.second_values} of its steps: two runs seem to write "
                "into one file; give kleash the lines of one"
            )
        said = []
        for step, top in self.resumes:
            first = step <= min(self.steps)
            said.append(
                f"step {step} came again after step {top}: "
                + ("the run began anew, and the last run counts" if first else "resumed; what was logged last counts")
            )
        if self.sorted_rows:
            said.append(f"{self.sorted_rows} rows were out of order and are sorted by step")
        if self.second_values:
            said.append(f"{self.second_values} values were logged twice for one step; the last counts")
        return said

    def _again(self, step: int, items: list[tuple[str, float]]) -> None:
        """A row whose step is not the highest yet: late, doubled, or after a resume."""
        came = [series for key, _ in items if (series := self.keys.get(key)) and self._highest(series) >= step]
        if not came:
            self.sorted_rows += step < self._top
        elif step == self._top:
            new = dict(items)
            self.second_values += any(
                series.values[-1] != new[key] and new[key] == new[key] and series.values[-1] == series.values[-1]
                for key in new
                if (series := self.keys.get(key)) and self._highest(series) >= step
            )
        else:
            self.resumes.append((step, self._top))
            if self._mixed(len(self.resumes)) or len(self.resumes) > MOST_RESUMES:
                raise RunError(
                    f"the rows of two runs alternate in {self.name} (step {step} comes after step {self._top}, and "
                    "so on); give kleash the lines of one"
                )
            self.void(step)
            self._top = step

    def _mixed(self, count: int) -> bool:
        return count >= MIXED_LEAST and count > MIXED_SHARE * len(self.steps)

    def _highest(self, series: _Series) -> int:
        """The key's highest step that counts; brought up to date when asked."""
        for row in series.rows[series.seen :]:
            series.highest = max(series.highest, self.steps[row])
        series.seen = len(series.rows)
        return series.highest

    def _steps(self) -> NDArray[np.int64]:
        return np.frombuffer(self.steps, np.int64)

    def _counting(self) -> NDArray[np.bool_]:
        counting, steps, start = np.ones(len(self.steps), bool), self._steps(), 0
        for row, step in self._voids:  # each stands for itself and all later ones: theirs are higher
            counting[start:row] = steps[start:row] < step
            start = row
        return counting
