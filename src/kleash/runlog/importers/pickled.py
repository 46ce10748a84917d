"""Plain values out of a pickle without running it: `training_args.bin` tells beta, and a pickle may run anything."""

import pickletools
import zipfile
from pathlib import Path
from typing import Any

#: A trainer's arguments are a few kilobytes.
MOST_BYTES = 4_000_000


def training_arguments(path: Path) -> tuple[str | None, dict[str, Any]]:
    """(class of the arguments, its fields that are numbers, strings, booleans or None); (None, {}) where unreadable."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            if archive.getinfo(name).file_size > MOST_BYTES:
                return None, {}
            content = archive.read(name)
        return _plain_fields(content)
    except (OSError, ValueError, StopIteration, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError):
        return None, {}


def _plain_fields(content: bytes) -> tuple[str | None, dict[str, Any]]:
    kind: str | None = None
    fields: dict[str, Any] = {}
    memo: dict[int, Any] = {}
    key: Any = None
    last: Any = None
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument or 0)] = last
            continue
        if opcode.name == "MEMOIZE":
            memo[len(memo)] = last
            continue
        if opcode.name == "GLOBAL" and kind is None:
            kind = str(argument).split()[-1]
        last = _value(opcode.name, argument, memo)
        if isinstance(key, str) and last is not _OTHER:
            fields[key], key = last, None
        else:
            key = last if isinstance(last, str) else None
    return kind, fields


_OTHER = object()


def _value(name: str, argument: Any, memo: dict[int, Any]) -> Any:
    if name in ("BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT", "BININT", "BININT1", "BININT2", "LONG1"):
        return argument
    if name in ("BINGET", "LONG_BINGET"):
        return memo.get(int(argument), _OTHER)
    return {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}.get(name, _OTHER)
