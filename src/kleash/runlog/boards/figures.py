"""The numbers of a record by the names that boards show: our field names, a KL with its unit. None is left out."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from kleash.records import Reading, Target, Unit

#: Fields that hold a KL written with its unit.
WITH_UNIT = ("target", "budget")
#: What an evaluation's figures begin with.
EVALUATION = "evaluation/"


def in_unit(name: str, unit: Unit) -> str:
    """ "kl_ref", "nats/token" → "kl_ref/nats_per_token": TensorBoard takes no brackets."""
    return f"{name}/{unit.replace('/', '_per_')}"


def figures(record: Any) -> dict[str, float]:
    """Of a step or an evaluation."""
    return {name: number for name, number in _named(record) if name != "step"}


def _named(record: Any) -> Iterator[tuple[str, float]]:
    for field in fields(record):
        name, value = field.name, getattr(record, field.name)
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, Reading):
            named = in_unit(name.removesuffix("_token"), value.unit)
            yield named, value.value
            if value.standard_error is not None:
                yield f"{named}_error", value.standard_error
        elif isinstance(value, dict):
            yield from ((f"{name}/{key}", float(one)) for key, one in value.items() if one is not None)
        elif name in WITH_UNIT and value is not None:
            held = Target.parse(value)
            yield in_unit(name, held.unit), held.value
