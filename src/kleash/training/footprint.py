"""What a run takes of the memory, for people: a line at its start, a table where it is only checked."""

from kleash.models.free import free_bytes
from kleash.models.ledger import Entry, entries, peak, planned
from kleash.training.job import Job

_WHEN = {
    "held": "loaded now",
    "run": "from the first update on",
    "update": "in an update",
    "sampling": "while sampling",
}


def footprint(job: Job) -> list[Entry]:
    """Every entry, those that the plan decides at the plan's size."""
    fixed = entries(job.loaded.policy, job.reference.policies, job.size, job.work)
    return fixed + planned(job.size, job.work, job.plan)


def line(job: Job) -> str:
    """The plan, and the peak that goes with it."""
    found = footprint(job)
    return f"memory     {job.plan}: about {_gb(peak(found))} at the peak{_of_all(job, found)}"


def table(job: Job) -> list[str]:
    """A line an entry, largest lengths assumed."""
    found = footprint(job)
    work = job.work
    wide = max(len(entry.what) for entry in found)
    return [
        f"where the bytes go, for prompts of {work.prompt} and completions of {work.length} tokens:",
        *(f"  {entry.what:<{wide}}  {_gb(entry.size):>9}  {_WHEN[entry.when]}" for entry in found),
        f"  {'peak':<{wide}}  {_gb(peak(found)):>9}  an update or sampling, whichever is more{_of_all(job, found)}",
    ]


def _of_all(job: Job, found: list[Entry]) -> str:
    free = free_bytes(job.loaded.policy.device)
    if free is None:
        return ""
    return f", of {_gb(free + sum(entry.size for entry in found if entry.when == 'held'))} that can be had"


def _gb(size: int) -> str:
    return f"{size / 1e9:.3f} GB" if size < 1e9 else f"{size / 1e9:.2f} GB"
