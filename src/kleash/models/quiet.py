"""Keeps the progress bars of transformers off the terminal, where kleash shows its own progress."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_bars() -> Iterator[None]:
    """No bars inside; the user's own setting outside."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
