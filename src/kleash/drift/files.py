"""What an audit leaves on disk: the page, the same as JSON, a block for the model card, a badge, CI's summary."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kleash.drift import store
from kleash.drift.records import Audit
from kleash.errors import RunError, UsageError
from kleash.report.drift.badge import badge
from kleash.report.drift.markdown import card, summary
from kleash.report.drift.page import write_page
from kleash.whole import write_whole

NAMES = ("drift.html", "drift.json", "card.md", "badge.svg")


def check_place(out: Path, names: Sequence[str] = NAMES) -> None:
    """That files of these names can be written to `out`, as far as can be known before. Makes nothing.

    Raises:
        UsageError: it is no directory and cannot be made one, or may not be written to.
    """
    if (why := _hindrance(out, names)) is not None:
        raise UsageError(f"cannot write to {out}: {why}; nothing was measured. Name a directory that can be written to")


def _hindrance(out: Path, names: Sequence[str]) -> str | None:
    try:
        os.stat(out)
    except FileNotFoundError:
        pass  # it is to be made
    except OSError as error:
        return error.strerror
    nearest = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} may not be written to"
    return next((f"{out / name} is a directory" for name in names if (out / name).is_dir()), None)


def write_files(audit: Audit, out: Path) -> list[Path]:
    """drift.html, drift.json, card.md and badge.svg in `out`, which is made.

    Raises:
        RunError: they cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        texts = {"card.md": card(audit), "badge.svg": badge(audit)}
        written = store.write(audit, out / "drift.json")
        for name, text in texts.items():
            write_whole(out / name, text, errors="backslashreplace")
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror or error}") from error
    return [write_page(audit, out / "drift.html"), written, *(out / name for name in texts)]


def tell_ci(audit: Audit, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Appends the audit to the file that GITHUB_STEP_SUMMARY names; None if it names none that can be written."""
    path = environment.get("GITHUB_STEP_SUMMARY")
    if not path:
        return None
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(summary(audit))
    except OSError:
        return None
    return Path(path)
