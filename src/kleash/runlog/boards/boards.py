"""All boards of a run: what goes to them, what a resume does not send twice, and what happens when one fails."""

import importlib.util
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from kleash.errors import UsageError
from kleash.runlog.boards.figures import EVALUATION, figures
from kleash.runlog.boards.tensorboard import TensorBoard
from kleash.runlog.boards.trackio import Trackio
from kleash.runlog.boards.wandb import WandB
from kleash.runlog.findings import Finding, Found
from kleash.runlog.jsonl import Writer, read
from kleash.runlog.offline import OfflineEvaluation, OfflineStep
from kleash.runlog.schema import Evaluation, Event, Notice, Resume, Rollback, RunEnd, Step

BoardName = Literal["tensorboard", "wandb", "trackio"]
#: Name, which is that of the extra too → the package it needs, how it is opened.
BOARDS: dict[BoardName, tuple[str, Callable[..., "Board"]]] = {
    "tensorboard": ("tensorboardX", TensorBoard.opened),
    "wandb": ("wandb", WandB.opened),
    "trackio": ("trackio", Trackio.opened),
}
#: Where a run remembers by which identifier boards know it.
IDENTITY = "boards.json"


@runtime_checkable
class Board(Protocol):
    """One board. takes_back: whether steps can be sent again in place of those that are there."""

    @property
    def takes_back(self) -> bool: ...

    def write(self, step: int, named: Mapping[str, float]) -> None: ...

    def void(self, step: int) -> None:
        """What was written from this step on does not hold; a board that takes nothing back leaves it."""
        ...

    def alert(self, step: int, finding: Finding) -> None: ...

    def close(self) -> None: ...


class Boards:
    """Writes a run's events into its log, and their figures to its boards.

    say: tells the user that a board failed, the first time; the count comes when it is closed.
    """

    def __init__(self, log: Writer, boards: Mapping[str, Board], say: Callable[[str], None]) -> None:
        self.log, self._boards, self._say = log, dict(boards), say
        self._before = read(log.path) if boards else []
        self._sent = dict.fromkeys(boards, -1)  # steps up to here are there already
        self._failed = dict.fromkeys(boards, 0)
        self._pending: tuple[int, dict[str, float]] | None = None

    def write(self, event: Event) -> None:
        """
        Raises:
            RunError: the log cannot be written; a board that cannot is said.
        """
        self.log.write(event)
        if not self._boards:
            return
        if isinstance(event, Evaluation | OfflineEvaluation):  # goes with the step of its number, which comes next
            self._flush()
            self._pending = event.step, {EVALUATION + name: x for name, x in figures(event).items()}
        elif isinstance(event, Step | OfflineStep):
            self._step(event)
        elif isinstance(event, Found):
            self._each(event.step, lambda board: board.alert(event.step, event.finding))
        elif isinstance(event, Resume):
            self._resumed(event.step)
        elif isinstance(event, Rollback):
            self._rolled_back(event.step)
        elif isinstance(event, RunEnd):
            self._flush()

    def close(self) -> None:
        self._flush()
        self._each(None, lambda board: board.close())
        for name, count in self._failed.items():
            if count > 1:
                self._tell(f"{name} missed {count} of this run's records; the run's own log has them all")

    def _step(self, event: Step | OfflineStep) -> None:
        found = figures(event)
        if self._pending is not None and self._pending[0] == event.step:
            found |= self._pending[1]
            self._pending = None
        self._flush()
        self._each(event.step, lambda board: board.write(event.step, found))

    def _flush(self) -> None:
        """An evaluation that no step came for."""
        if self._pending is not None:
            (step, found), self._pending = self._pending, None
            self._each(step, lambda board: board.write(step, found))

    def _resumed(self, step: int) -> None:
        """Steps that are computed again are not sent again, but where they replace the others."""
        highest = last_sent(self._before)
        for name, board in self._boards.items():
            self._sent[name] = step - 1 if board.takes_back else highest
            if board.takes_back:
                self._try(name, board, lambda board: board.void(step))

    def _rolled_back(self, step: int) -> None:
        """What comes now is sent also where a board takes nothing back: it replaces a broken stretch."""
        self._pending = None
        for name in self._boards:
            self._sent[name] = min(self._sent[name], step - 1)
        self._each(step, lambda board: board.void(step))

    def _each(self, step: int | None, act: Callable[[Board], None]) -> None:
        for name, board in self._boards.items():
            if step is None or step > self._sent[name]:
                self._try(name, board, act)

    def _try(self, name: str, board: Board, act: Callable[[Board], None]) -> None:
        try:
            act(board)
        except Exception as error:  # whatever a board does, the training goes on
            self._failed[name] += 1
            if self._failed[name] == 1:
                self._tell(f"{name} missed a record ({type(error).__name__}: {error}); the training goes on")

    def _tell(self, text: str) -> None:
        self._say(text)
        self.log.write(Notice(what="board", text=text))


def last_sent(events: Sequence[Event]) -> int:
    """The highest step that boards had before: of what a rollback took back, none."""
    highest = -1
    for event in events:
        if isinstance(event, Rollback):
            highest = min(highest, event.step - 1)
        elif isinstance(event, Step | OfflineStep):
            highest = max(highest, event.step)
    return highest


def require(names: Sequence[BoardName]) -> None:
    """
    Raises:
        UsageError: the package of a board is not installed.
    """
    for name in names:
        package = BOARDS[name][0]
        if importlib.util.find_spec(package) is None:
            raise UsageError(
                f'log.to names "{name}", and the package {package} is not installed: '
                f"pip install 'kleash[{name}]', or leave it out"
            )


@contextmanager
def opened(
    names: Sequence[BoardName], project: str, log: Writer, config: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[Boards]:
    """The boards of the run that `log` is of, a resumed run's the same as before.

    Raises:
        UsageError: one cannot be opened; the training has not begun.
    """
    require(names)
    run_dir, found = log.path.parent, dict[str, Board]()
    identity = _identity(run_dir) if names else ""
    try:
        for name in names:
            try:
                found[name] = BOARDS[name][1](run_dir, project=project, identity=identity, config=config)
            except Exception as error:  # of a package that is not ours
                advice = "; log in (wandb login), or set WANDB_MODE=offline" if name == "wandb" else ""
                why = f"{type(error).__name__}: {error}{advice}"
                raise UsageError(f'log.to: "{name}" cannot be opened: {why}') from error
        boards = Boards(log, found, say)
    except BaseException:
        for board in found.values():
            board.close()
        raise
    try:
        yield boards
    finally:
        boards.close()


def _identity(run_dir: Path) -> str:
    """A few letters that tell this run from others of its name; made once."""
    path = run_dir / IDENTITY
    try:
        known = json.loads(path.read_text())["run"]
    except (OSError, ValueError, KeyError, TypeError):
        known = secrets.token_hex(4)
        path.write_text(json.dumps({"run": known}) + "\n")
    return str(known)
