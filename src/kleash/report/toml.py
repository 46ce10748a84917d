"""A resolved config as TOML text, so that a report says how to do the run again (Python itself only reads TOML)."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any


def toml(tree: Mapping[str, Any]) -> str:
    """Plain values → TOML. A None is left out: in a config it is what an absent key means."""
    return "\n".join(table(tree, ())).strip() + "\n"


def table(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain keys first, then sub-tables, as TOML demands; below a section, tables are written inline."""
    known = {key: value for key, value in tree.items() if value is not None}
    sections = {key: value for key, value in known.items() if not path and is_section(value)}
    for key, value in known.items():
        if key not in sections:
            yield f"{bare(key)} = {inline(value)}"
    for key, value in sections.items():
        for part in value if isinstance(value, list | tuple) else [value]:
            yield ""
            yield f"[[{bare(key)}]]" if isinstance(value, list | tuple) else f"[{bare(key)}]"
            yield from table(part, (*path, key))


def is_section(value: Any) -> bool:
    rows = value if isinstance(value, list | tuple) else [value]
    return len(rows) > 0 and all(isinstance(part, Mapping) for part in rows)


def inline(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() | int():
            return str(value)
        case Mapping():
            pairs = ", ".join(f"{bare(key)} = {inline(item)}" for key, item in value.items() if item is not None)
            return f"{{ {pairs} }}" if pairs else "{}"
        case list() | tuple():
            return "[" + ", ".join(inline(item) for item in value if item is not None) + "]"
        case _:
            # A JSON string is a TOML basic string, but for DEL and surrogates, which TOML will not have raw or escaped.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def bare(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
