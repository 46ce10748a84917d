"""What the monitor says of a training log, shown: on a terminal, live, and as a page."""

from kleash.report.watch.case import Case, look

__all__ = ["Case", "look"]
