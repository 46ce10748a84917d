"""Reading the training logs of any trainer into one vocabulary (`kleash.runlog.series.TrainLog`).

Two questions, kept apart: how a container holds rows of numbers (trainer_state.json, JSONL, event files, …), and what
a trainer's keys mean (`vocabulary.Vocabulary`). No trainer and no logger is imported.
"""

from kleash.runlog.importers.detect import Again, read_log

__all__ = ["Again", "read_log"]
