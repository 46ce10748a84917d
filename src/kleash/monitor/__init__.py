"""The monitor: a training log in, findings out. Reads any trainer's log (`kleash.runlog.importers`), loads no torch."""

from kleash.monitor.engine import Examination, examine

__all__ = ["Examination", "examine"]
