"""What trainers print: verl's and OpenRLHF's lines (also through Ray's prefixes), slime's, and TRL's dictionaries."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.importers.files import open_log, placed_lines
from kleash.runlog.importers.numbers import spelled
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.vocabulary import Raw
from kleash.runlog.series import SampleText

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_VERL = re.compile(r"\bstep:(\d{1,18}) - (.+)")
_OPENRLHF = re.compile(r"Global step (\d{1,18}): (\{.*\})")
_SLIME = re.compile(r" - (?:rollout|step|perf|eval) (\d{1,18}): (\{.*\})")
_TRL = re.compile(r"(\{'(?!train_runtime)[\w/.@-]+': [^{}]*'epoch': [^{}]*\})")
_PAIR = re.compile(r"'([^']+)': (?:'([^']*)'|((?:np\.|torch\.)?\w*\([^)]*\)|[^,{}\[\]()]+))(?=[,}])")
_SAMPLE = re.compile(r"Sample: (\[.*\])")
_SETTING = re.compile(r"'(kl_loss_type|kl_penalty)': '([\w+]+)'")
#: A sample longer than this is no sample.
LONGEST_SAMPLE = 1_000_000


class _Console:
    """The rows of a console log so far."""

    def __init__(self, path: Path, keep: frozenset[str] | None) -> None:
        self.path, self.table = path, Table(str(path), keep)
        self.notes: list[str] = []
        self.config: dict[str, str] = {}
        self.kinds = {"verl": 0, "OpenRLHF": 0, "slime": 0, "TRL": 0}
        self.rollout: int | None = None
        self.sample_at: dict[int, int] = {}
        self._sample: int | None = None

    def take(self, text: str, at: int, ended: bool) -> None:
        for setting in _SETTING.finditer(text):
            self.config.setdefault(setting[1], setting[2])
        if verl := _VERL.search(text):
            self.row("verl", int(verl[1]), _verl_pairs(verl[2], ended))
        elif openrlhf := _OPENRLHF.search(text):
            step = int(openrlhf[1])
            self.row("OpenRLHF", step, pairs(openrlhf[2]))
            if self._sample is not None:
                self.sample_at[step], self._sample = self._sample, None
        elif slime := _SLIME.search(text):
            if " - rollout " in text:
                self.rollout = int(slime[1])
            update = " - step " in text and self.rollout is not None
            self.row("slime", self.rollout if update else int(slime[1]), pairs(slime[2]), several=update)
        elif trl := _TRL.search(text):
            evaluated = trl[1].startswith("{'eval_")
            self.row("TRL", max(1, self.table.highest if evaluated else self.table.highest + 1), pairs(trl[1]))
        elif "Sample: [" in text:
            self._sample = at

    def row(self, kind: str, step: int | None, items: Iterator[tuple[str, float]], several: bool = False) -> None:
        found = list(items)
        if found and step is not None:
            self.kinds[kind] += 1
            (self.table.append if several else self.table.add)(step, found)

    def samples(self, wanted: tuple[int, ...] | None = None) -> list[SampleText]:
        """OpenRLHF prints one sample a step: [text of prompt and completion, reward]."""
        found = []
        with open_log(self.path) as file:
            for step in sorted(self.sample_at if wanted is None else set(wanted) & self.sample_at.keys()):
                file.seek(self.sample_at[step])
                match = _SAMPLE.search(file.readline(LONGEST_SAMPLE).decode("utf-8", errors="replace"))
                if match is None:
                    continue
                try:
                    text, score = ast.literal_eval(match[1])
                except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                    continue
                found.append(SampleText(step=step, prompt="", completion=str(text), score=spelled(str(score))))
        return found


def read_console(path: Path, keep: frozenset[str] | None = None) -> Raw:
    """The rows in a console log.

    Raises:
        RunError: it has none, those of two trainers, or those of two runs.
    """
    console, torn = _Console(path, keep), False
    for at, line in placed_lines(path):
        ended = line.endswith(b"\n")
        text = line.decode("utf-8", errors="replace").rstrip("\r\n")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        if "[repeated" in text:
            text = _REPEATED.sub("", text)
        console.take(text, at, ended)
        torn = not ended
    there = [kind for kind, count in console.kinds.items() if count]
    if not there:
        raise RunError(
            f"{path} has no line of a trainer that kleash knows (verl, OpenRLHF, slime, TRL); "
            "a table goes in as CSV or JSONL with --columns"
        )
    if len(there) > 1:
        raise RunError(f"{path} has lines of {' and '.join(there)}; give kleash one run a file")
    if torn:
        console.notes.append("the last line has no end; what may be torn in it is left out")
    if there == ["TRL"]:
        console.notes.append("TRL prints no step: its rows are numbered, and a step here is a row")
    return Raw(
        path=path,
        table=console.table,
        container="console",
        config=dict(console.config),
        notes=console.notes,
        smoothing=None,
        sample_steps=tuple(sorted(console.sample_at)),
        samples=console.samples,
    )


def pairs(text: str) -> Iterator[tuple[str, float]]:
    """The numbers of a printed dictionary: {'kl': 0.5, 'lr': '1e-06', 'x': np.float64(2.0)}."""
    for match in _PAIR.finditer(text):
        value = spelled(match[2] if match[2] is not None else match[3])
        if value is not None:
            yield match[1], value


def _verl_pairs(text: str, ended: bool) -> Iterator[tuple[str, float]]:
    """key:value - key:value; the last pair of a line without an end may be torn."""
    found = text.split(" - ")
    for pair in found if ended else found[:-1]:
        key, _, value = pair.rpartition(":")
        number = spelled(value)
        if key and number is not None:
            yield key.strip(), number
