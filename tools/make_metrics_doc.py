"""Writes docs/metrics.md from the field documentation of the step records: python tools/make_metrics_doc.py"""

import typing
from dataclasses import fields
from pathlib import Path

from kleash.records import DIRECTIONS, Reading, Step
from kleash.runlog.offline import PairStep, ScoreStep, TextStep

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"

HEAD = """# What a step logs

<!-- Made by tools/make_metrics_doc.py from the fields of kleash.records.Step and kleash.runlog.offline: edit those. -->

Every training step appends one line to `events.jsonl` in the run directory. It has these fields. `null` means that the
figure was not measured; it never stands for 0. All KL values are in nats. What `kleash sft` and `kleash dpo` log stands
below.

"""
TABLE = """| field | type | meaning |
|---|---|---|
"""
#: The records of an update by the verb that writes them.
OFFLINE = {"An update of sft": TextStep, "An update of dpo": PairStep, "An update of reward": ScoreStep}

READING = """
## A KL reading

A field of the type *reading* holds the value and all that is needed to know what it means:
{fields}.
`standard_error` is clustered by prompt; the quantiles are over the values that `value` is the mean of; `invalid` says
why the value must not steer beta. Each kind compares two distributions, in the order KL(first‖second):

| kind | compares |
|---|---|
"""


def render() -> str:
    """The whole page."""
    names = ", ".join(f"`{field.name}`" for field in fields(Reading))
    kinds = [f"| `{kind}` | {pair.replace('||', '‖')} |\n" for kind, pair in DIRECTIONS.items()]
    offline = "".join(f"\n## {title}\n\n{TABLE}{_rows(record)}" for title, record in OFFLINE.items())
    return HEAD + TABLE + _rows(Step) + offline + READING.format(fields=names) + "".join(kinds)


def _rows(record: type) -> str:
    hints = typing.get_type_hints(record)
    return "".join(
        f"| `{field.name}` | {_type(hints[field.name])} | {_cell(field.metadata['doc'])} |\n"
        for field in fields(record)
    )


def _type(hint: object) -> str:
    """The type without "or None", in words."""
    args = [arg for arg in typing.get_args(hint) if arg is not type(None)]
    if typing.get_origin(hint) is dict:
        return f"{_type(args[1])} by name"
    kind = args[0] if args else hint
    return {Reading: "reading", float: "number", int: "count", str: "text"}[kind]  # type: ignore[index]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
