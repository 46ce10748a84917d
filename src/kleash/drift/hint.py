"""An earlier checkpoint of the same run that went less far and kept most of the gain, by the run's own log alone."""

import re
from dataclasses import dataclass
from pathlib import Path

from kleash.errors import RunError
from kleash.records import Step
from kleash.runlog import Checkpoint, read

#: A checkpoint is worth a try with at most this share of the KL, and at least this share of the gain.
MOST_KL, LEAST_GAIN = 0.5, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A checkpoint to try: its name for the command line, and what the log says of it."""

    name: str
    kl: float
    score: float

    @property
    def text(self) -> str:
        return f"try {self.name} (by its log: KL {self.kl:.3g} nats/sequence, score {self.score:.2f})"


def earlier(tuned: str) -> Earlier | None:
    """The highest-scoring checkpoint of the run that `tuned` is a checkpoint of, among those with half its KL or less.

    None where there is no such run of kleash's, no such checkpoint on disk, or the log does not say.
    """
    checkpoint, named = located(tuned)
    run = checkpoint.parent.parent
    if checkpoint.parent.name != "checkpoints" or not (run / "events.jsonl").is_file():
        return None
    try:
        events = read(run / "events.jsonl")
    except RunError:
        return None
    known = {run / event.path: event for event in events if isinstance(event, Checkpoint)}
    first = next((event.score for event in events if isinstance(event, Step)), None)
    own = known.get(checkpoint)
    if own is None or own.kl_ref is None or own.score is None or first is None:
        return None
    gain = own.score - first
    found = [
        Earlier(name=f"{named}@step-{event.step}", kl=event.kl_ref.value, score=event.score)
        for path, event in known.items()
        if event.step < own.step and event.kl_ref is not None and event.score is not None and path.is_dir()
        if event.kl_ref.value <= MOST_KL * own.kl_ref.value and event.score - first >= LEAST_GAIN * gain
    ]
    return max(found, key=lambda one: one.score, default=None)


def located(tuned: str) -> tuple[Path, str]:
    """The checkpoint's own directory, and its run's as the user wrote it."""
    if match := re.fullmatch(r"(.+)@step-(\d+)", tuned):
        run = Path(match[1]).expanduser().resolve()
        return run / "checkpoints" / f"step-{int(match[2]):06d}", match[1]
    path = Path(tuned).expanduser()
    return path.resolve(), str(path.parent if path.name == "best" else path.parent.parent)
