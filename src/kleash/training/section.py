"""What the sections of a config share: strictness, and a kind written as a bare string."""

from typing import Any

from pydantic import BeforeValidator, ConfigDict

from kleash.errors import UsageError

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def named_kind(default: str) -> BeforeValidator:
    """A bare string names the kind; a table without one gets the default."""

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, list):
            raise UsageError(
                "kl.penalty: one placement at a time; two would charge the same KL twice. Choose one of the list"
            )
        return {"kind": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(named)
