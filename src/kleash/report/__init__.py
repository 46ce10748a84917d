"""Pages one can open anywhere: `run` writes a run's report, `compare` lays runs side by side. No torch."""
