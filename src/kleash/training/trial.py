"""Two steps that change nothing: what a step takes in time and memory, before a run is begun."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kleash.models.counting import TokenCounter
from kleash.records import Step
from kleash.runlog.jsonl import Writer
from kleash.training import checkpoint
from kleash.training.job import Job, Progressing, Sinks
from kleash.training.online import take_step

#: The second is the measure: the first also makes the optimizer's state and warms the allocator.
STEPS = 2


def tried(job: Job) -> list[str]:
    """Takes `STEPS` steps at a learning rate of 0, recorded nowhere, and says what the last one took.

    The weights stay bit for bit; the rewards are called, as they will be. The job is spent: its optimizer has counted.

    Raises:
        RunError: what would have ended the run in its first steps.
    """
    with (
        TemporaryDirectory() as name,
        Writer(Path(name) / "events.jsonl") as events,
        Writer(Path(name) / "samples.jsonl") as samples,
    ):
        state = _steps(replace(job, learning_rate=0.0, run_dir=Path(name)), events, samples)
    return _told(job, state.history[-1])


def _steps(job: Job, events: Writer, samples: Writer) -> Progressing:
    checkpoint.seed_random(job.config.train.seed)
    state = Progressing(step=0, controller=job.controller.init(job.config.kl.first_beta), plan=job.plan)
    counter = TokenCounter(job.loaded.policy, *job.reference.policies)
    try:
        for _ in range(STEPS):
            take_step(job, state, Sinks(events, samples, lambda *_: None, lambda _: None), counter)
    finally:
        counter.close()
    return state


def _told(job: Job, last: Step) -> list[str]:
    total = last.seconds["total"]
    parts = ", ".join(f"{name} {_time(s)}" for name, s in last.seconds.items() if name != "total")
    memory = "" if last.peak_memory_gb is None else f", {last.peak_memory_gb:.2f} GB at the peak so far"
    return [
        f"a step    {_time(total)} ({parts}){memory}, from two trial steps that changed nothing",
        f"the run   {_time(total * job.config.train.steps)} for {job.config.train.steps} steps; later answers may be "
        "longer or shorter",
    ]


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
