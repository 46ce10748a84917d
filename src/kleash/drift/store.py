"""drift.json: an audit written and read back, with the version of its schema. No torch."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kleash.drift.records import AUDIT_SCHEMA, Audit
from kleash.errors import RunError, UsageError
from kleash.whole import write_whole


def to_json(audit: Audit) -> str:
    """One line of JSON, keys in the records' order.

    Raises:
        RunError: a number in it is not finite, which JSON has no word for and a record should not hold.
    """
    try:
        text = json.dumps(asdict(audit), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise RunError(f"an audit with a number that is not finite cannot be written ({error})") from error
    # A lone surrogate, as a user's file may hold, is no Unicode text.
    return text.encode("utf-8", "replace").decode("utf-8")


def write(audit: Audit, path: str | Path) -> Path:
    """Writes drift.json whole or not at all."""
    path = Path(path)
    text = to_json(audit)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text + "\n")


def from_json(text: str, where: str) -> Audit:
    """The audit in a text.

    Args:
        where: the text is from, for the message.

    Raises:
        UsageError: it is none, or of a newer kleash.
    """
    try:
        tree: Any = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    schema = tree.get("schema") if isinstance(tree, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise UsageError(
            f"{where} is not an audit of drift: it has no schema version; `kleash drift` writes drift.json"
        )
    if schema > AUDIT_SCHEMA:
        raise UsageError(
            f"{where} has schema {schema} and this kleash reads up to {AUDIT_SCHEMA}: it was written by a newer one; "
            "pip install -U kleash"
        )
    try:
        return TypeAdapter(Audit).validate_python(tree)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where} is not an audit of drift: {place}: {first['msg']}") from error


def read(path: str | Path) -> Audit:
    """The audit in a file.

    Raises:
        UsageError: there is no such file, or no audit in it, or one of a newer kleash.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no report {path}; `kleash drift BASE TUNED` writes drift.json")
    return from_json(path.read_text(encoding="utf-8", errors="replace"), str(path))
