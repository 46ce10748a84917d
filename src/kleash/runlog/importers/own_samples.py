"""Where each step's samples stand in a run's samples.jsonl, so that they are read only when asked for."""

from collections.abc import Mapping
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.importers.files import open_log
from kleash.runlog.importers.growing import Growing
from kleash.runlog.importers.trl_files import as_text
from kleash.runlog.schema import Sample, from_json
from kleash.runlog.series import SampleText


class SampleIndex:
    """notes: what is wrong with the file, for people."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, Growing(path)
        self._begin()
        self._times = 0

    def _begin(self) -> None:
        self._file.begin()
        self._at, self._torn = dict[int, list[int]](), 0

    def update(self) -> None:
        """Takes in what is new.

        Raises:
            RunError: the file cannot be read.
        """
        if not self.path.is_file():
            return
        if self._file.is_another:
            self._begin()
            self._times += 1
        for at, line in self._file.new():
            self._take(at, line)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(self._at))

    @property
    def marks(self) -> Mapping[int, tuple[int, ...]]:
        """As long as a step's is the same, so are its samples."""
        return {step: (self._times, *places) for step, places in self._at.items()}

    @property
    def notes(self) -> list[str]:
        return [f"{self.path.name} has a torn line, which is left out"] * (self._torn + self._file.torn)

    def _take(self, at: int, line: bytes) -> None:
        head, _, rest = line.partition(b'"step": ')
        digits = rest[:20].split(b",")[0].split(b"}")[0]
        if not line.endswith(b"}") or not digits.isdigit():
            self._torn += 1
        elif b'"event": "sample"' in head:
            self._at.setdefault(int(digits), []).append(at)
        else:  # a resume: what is later is void
            self._at = {step: places for step, places in self._at.items() if step < int(digits)}

    def read(self, wanted: tuple[int, ...] | None = None) -> list[SampleText]:
        """Samples of these steps, or of all.

        Raises:
            RunError: the file is damaged or gone.
        """
        found: list[SampleText] = []
        with open_log(self.path) as file:
            for step in self.steps if wanted is None else sorted(set(wanted)):
                for at in self._at.get(step, ()):
                    file.seek(at)
                    found.append(self._sample(step, file.readline()))
        return found

    def _sample(self, step: int, line: bytes) -> SampleText:
        try:
            sample = from_json(line)
        except RunError as error:
            raise RunError(f"{self.path}, a sample of step {step}: {error}") from error
        if not isinstance(sample, Sample):
            raise RunError(f"{self.path} holds a line that is no sample")
        return SampleText(
            step=sample.step, prompt=as_text(sample.prompt), completion=sample.completion, score=sample.score
        )
