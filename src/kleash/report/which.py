"""The report that belongs to a run, by the verb that began it."""

from pathlib import Path

from kleash.report.offline import write_offline_report
from kleash.report.run import write_report
from kleash.report.stories import STORIES
from kleash.runlog import RunStart, read


def write(run_dir: Path) -> Path:
    """Writes `report.html` into a run's directory and returns its path.

    Raises:
        RunError: no readable log there, no step in it yet, or the page cannot be written.
    """
    start = next((event for event in read(run_dir / "events.jsonl") if isinstance(event, RunStart)), None)
    return write_offline_report(run_dir) if start is not None and start.verb in STORIES else write_report(run_dir)
