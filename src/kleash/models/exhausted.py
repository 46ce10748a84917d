"""How running out of memory looks, what is done then, and what is said where nothing can be."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kleash.errors import KleashError, RunError

#: What running out of memory says, where it is no class of its own.
_SAYINGS = ("DefaultCPUAllocator", "not enough memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of a device or of the machine."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, KleashError):  # what it tells of may have been one, and has been dealt with
        return False
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAYINGS)


@contextmanager
def room_for(what: str, advice: str) -> Iterator[None]:
    """Where memory runs out inside, an error says while doing `what`, and what would help.

    Raises:
        RunError: it ran out.
    """
    try:
        yield
        return
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        said = said_of(error)
    release()
    raise RunError(f"memory ran out ({said}) while loading {what}; {advice}")


def said_of(error: BaseException) -> str:
    """The first line of an error's message; Python's own MemoryError has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def release() -> None:
    """Gives back what an abandoned pass held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
