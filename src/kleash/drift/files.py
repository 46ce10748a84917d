"""What an audit leaves on disk: the page, the same as JSON, a block for the model card, a badge, CI's summary."""

import os
from collections.abc import Mapping
from pathlib import Path

from kleash.drift import store
from kleash.drift.records import Audit
from kleash.errors import RunError
from kleash.report.drift.badge import badge
from kleash.report.drift.markdown import card, summary
from kleash.report.drift.page import write_page


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
            (out / name).write_text(text, encoding="utf-8", errors="backslashreplace")
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
