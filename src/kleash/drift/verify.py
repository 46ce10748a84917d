"""Is this the model that a report is about? By its fingerprint, in the time that it takes to load it."""

from dataclasses import dataclass
from typing import Literal

from kleash.drift.records import Audit, Side
from kleash.drift.sources import Asked, open_one, split_name
from kleash.models.fingerprint import differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """is_model: which side of the report the model is; None if neither. differences: from the tuned side, in words."""

    is_model: Literal["tuned", "base"] | None
    differences: list[str]


def verify(audit: Audit, name: str, *, device: str = "auto", trust_remote_code: bool = False) -> Verified:
    """Compares a model with both sides of an audit.

    The model is opened in the precision of the report's, for that is what the report is about: the same file read in
    another precision is another model.

    Args:
        name: as `kleash drift` takes it.

    Raises:
        UsageError, RunError: there is no such model, or it cannot be read.
    """
    asked = Asked(device=device, trust_remote_code=trust_remote_code)
    found = open_one(_as_in(name, audit.tuned), asked).record.fingerprint
    from_tuned = differences(audit.tuned.fingerprint, found)
    if not from_tuned:
        return Verified(is_model="tuned", differences=[])
    if _as_in(name, audit.base) != _as_in(name, audit.tuned):
        found = open_one(_as_in(name, audit.base), asked).record.fingerprint
    is_base = not differences(audit.base.fingerprint, found)
    return Verified(is_model="base" if is_base else None, differences=from_tuned)


def _as_in(name: str, side: Side) -> str:
    """The name with the precision or rounding that this side of the report was opened in, unless it says its own."""
    stem, word = split_name(name)
    if word is not None or stem.endswith(".gguf"):
        return name
    return f"{stem}@{split_name(side.name)[1] or side.dtype}"
