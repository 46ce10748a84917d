"""The ways a command can fail for a reason the user can mend. Standard library only.

A message is one or two sentences: what was wrong, where, and what would be right.
"""


class KleashError(Exception):
    """Anything kleash says on purpose; the command line prints it without a traceback."""

    exit_code = 2


class UsageError(KleashError, ValueError):
    """The command line, the config or an argument is wrong; nothing was started (exit code 64)."""

    exit_code = 64


class RunError(KleashError, RuntimeError):
    """It could not be done or measured (exit code 2)."""

    exit_code = 2


class NotFiniteError(RunError):
    """The policy gives NaN or infinite numbers: its weights are broken, and earlier ones may not be."""
