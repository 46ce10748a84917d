"""What the monitor says of a training log, shown: on a terminal, live, and as a page."""

from kleash.report.watch.case import Case, again, look

__all__ = ["Case", "again", "look"]
