"""Plain values as JSON can hold them."""

import math
from typing import Any


def plain(value: Any) -> Any:
    """The same in types that JSON has: non-finite floats are words, a lone surrogate is a question mark."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
