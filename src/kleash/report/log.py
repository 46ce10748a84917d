"""A run directory, read: the present line of its events and its samples, as the pages need them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kleash.errors import RunError
from kleash.records import Prompt, Reading, Step, Target
from kleash.runlog import (
    Checkpoint,
    Evaluation,
    Found,
    Notice,
    Rollback,
    RunEnd,
    RunStart,
    Sample,
    current,
    last_of_each_step,
    read,
)

Extract = Callable[[Step], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one run left behind; steps are in order, each once."""

    name: str
    start: RunStart | None
    steps: Sequence[Step]
    notices: Sequence[Notice | Rollback | Found]
    checkpoints: Sequence[Checkpoint]
    evaluations: Sequence[Evaluation]
    end: RunEnd | None
    samples: Sequence[Sample]

    @property
    def target(self) -> Target | None:
        """The last target in force; None for a run that had none."""
        return next((Target.parse(step.target) for step in reversed(self.steps) if step.target), None)

    @property
    def per_token(self) -> bool:
        return self.target is not None and self.target.unit == "nats/token"

    def kl(self, step: Step | Evaluation) -> Reading | None:
        """KL to the reference, in the unit of the run's target (per sequence without one)."""
        return step.kl_ref_token if self.per_token else step.kl_ref

    def kl_origin_value(self, step: Step) -> float | None:
        """KL to the first reference, in the same unit; None until the reference has moved."""
        reading = step.kl_origin_token if self.per_token else step.kl_origin
        return None if reading is None else reading.value

    def kl_value(self, step: Step) -> float | None:
        reading = self.kl(step)
        return None if reading is None else reading.value


def load(run_dir: Path) -> Log:
    """Reads `events.jsonl` and, where there is one, `samples.jsonl`.

    Raises:
        RunError: no log there, a damaged one, or one without a single step.
    """
    events = current(read(run_dir / "events.jsonl"))
    steps = last_of_each_step(events)
    if not steps:
        raise RunError(f"{run_dir / 'events.jsonl'} has no step yet; there is nothing to report")
    heard = run_dir / "samples.jsonl"
    samples = [event for event in current(read(heard)) if isinstance(event, Sample)] if heard.exists() else []
    starts = [event for event in events if isinstance(event, RunStart)]
    ends = [event for event in events if isinstance(event, RunEnd)]
    return Log(
        name=run_dir.resolve().name,
        start=starts[-1] if starts else None,
        steps=steps,
        notices=[event for event in events if isinstance(event, Notice | Rollback | Found)],
        checkpoints=[event for event in events if isinstance(event, Checkpoint)],
        evaluations=[event for event in events if isinstance(event, Evaluation)],
        end=ends[-1] if ends else None,
        samples=samples,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def last_part(steps: Sequence[Step], share: float) -> Sequence[Step]:
    """The last `share` of the steps, at least one."""
    return steps[-max(1, round(len(steps) * share)) :]


def first_part(steps: Sequence[Step], share: float) -> Sequence[Step]:
    return steps[: max(1, round(len(steps) * share))]


def prompt_text(prompt: Prompt) -> str:
    """A prompt for reading: messages as "role: content", one a line."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message.get('role', '?')}: {message.get('content', '')}" for message in prompt)
