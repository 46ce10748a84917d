"""Boards: where a run's figures also go, beside its own log. TensorBoard, W&B and trackio, by their own packages.

A board is a copy: the run's log is whole without it, and whatever fails in a board never ends a run.
"""

from kleash.runlog.boards.boards import BOARDS, Board, BoardName, Boards, opened, require

__all__ = ["BOARDS", "Board", "BoardName", "Boards", "opened", "require"]
