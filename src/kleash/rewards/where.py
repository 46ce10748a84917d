"""Where in the user's own code something happened."""

import sysconfig
from pathlib import Path
from traceback import StackSummary

_NOT_THE_USERS = (
    str(Path(__file__).parents[1]),
    *(sysconfig.get_path(place) for place in ("stdlib", "purelib", "platlib")),
    "<frozen",
)


def where(stack: StackSummary) -> str:
    """ " (file:line: source)" of the deepest frame of the user's own code, of the deepest of all if none is."""
    frames = [frame for frame in stack if not frame.filename.startswith(_NOT_THE_USERS)] or list(stack)
    return f" ({frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
