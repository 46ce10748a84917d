"""The monitor: a training log in, findings out. Reads any trainer's log (`kleash.runlog.importers`), loads no torch."""

from kleash.monitor.engine import Examination, examine
from kleash.monitor.watched import Watched

__all__ = ["Examination", "Watched", "examine"]
