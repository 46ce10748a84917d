"""The report that belongs to a log: a run's own, by the verb that began it, or the page of a watched one."""

from pathlib import Path

from kleash.report.offline import write_offline_report
from kleash.report.run import write_report
from kleash.report.stories import STORIES
from kleash.report.watch import look
from kleash.report.watch.page import write_page
from kleash.runlog import RunStart, read

EVENTS = "events.jsonl"


def write(path: Path, out: Path | None = None) -> Path:
    """Writes the page and returns its path: `report.html` in the directory of a run of ours, NAME-report.html in the
    working directory for another log, or `out`.

    Raises:
        RunError: no readable log there, no step in it yet, or the page cannot be written.
    """
    run_dir = path.parent if path.name == EVENTS else path
    if out is not None or not (run_dir / EVENTS).exists():
        return write_page([look(path)], out or Path(f"{path.resolve().name}-report.html"))
    start = next((event for event in read(run_dir / EVENTS) if isinstance(event, RunStart)), None)
    return write_offline_report(run_dir) if start is not None and start.verb in STORIES else write_report(run_dir)
