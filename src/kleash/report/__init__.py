"""Pages one can open anywhere: a run's report, and runs side by side. Reads run directories only; no torch."""

from kleash.report.compare import Row, compare, row, table
from kleash.report.run import charts, write_report

__all__ = ["Row", "charts", "compare", "row", "table", "write_report"]
