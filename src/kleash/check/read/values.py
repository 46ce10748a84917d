"""Values as people write them: `1e-3`, `true`, `[a, b]`, `${other.key}`."""

from typing import Any

import yaml

from kleash.check.records import Unread


def value(text: str) -> Any:
    """A word of a command line or an override as the value it stands for."""
    if "${" in text or text.startswith("$"):
        return Unread(text)
    try:
        return (
            float(text) if any(c.isdigit() for c in text) and not text.lstrip("+-").isdigit() else yaml.safe_load(text)
        )
    except ValueError:
        pass
    except yaml.YAMLError:
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}; a text is read as `value` does, for YAML 1.1 takes 1e-3 for one."""
    found: dict[str, Any] = {}
    for key, inner in table.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict):
            found |= flat(inner, f"{name}.")
        else:
            found[name] = value(inner) if isinstance(inner, str) else inner
    return found
