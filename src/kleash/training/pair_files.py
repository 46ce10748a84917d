"""Preferences from a file: pairs (prompt, chosen, rejected) and judged answers (prompt, completion, label).

Every format that prompts have. What cannot be meant is refused by its row, or, if that is asked for, left out and
counted; what is only suspicious is counted and said.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kleash.errors import UsageError
from kleash.records import Prompt
from kleash.training.pair_rows import Answer, BadRowError, judged_of, pair_of
from kleash.training.prompt_files import read_rows

#: What happens to a row that cannot be learned from.
BadRows = Literal["refuse", "drop"]

_PAIR, _JUDGED = ("prompt", "chosen", "rejected"), ("prompt", "completion", "label")


class Pairs(NamedTuple):
    """The better and the worse answer to prompts[i]; margins[i]: how much better, where the data says so.

    columns: all other columns. rows: where each stood in the data. said: what a person should know of the data.
    """

    prompts: list[Prompt]
    chosen: list[Answer]
    rejected: list[Answer]
    margins: list[float] | None
    columns: dict[str, list[Any]]
    rows: list[int]
    said: tuple[str, ...] = ()

    @property
    def answers(self) -> list[tuple[Answer, Answer]]:
        """Chosen before rejected."""
        return list(zip(self.chosen, self.rejected, strict=True))


class Judged(NamedTuple):
    """An answer to prompts[i], and whether it is wanted. The other fields as those of `Pairs`."""

    prompts: list[Prompt]
    completions: list[Answer]
    labels: list[bool]
    columns: dict[str, list[Any]]
    rows: list[int]
    said: tuple[str, ...] = ()

    @property
    def answers(self) -> list[tuple[Answer]]:
        return [(completion,) for completion in self.completions]


def read_pairs(source: str | Path, bad_rows: BadRows = "refuse") -> Pairs:
    """The pairs of anything that `read_rows` reads; see `as_pairs`."""
    return as_pairs(read_rows(source), bad_rows)


def read_judged(source: str | Path, bad_rows: BadRows = "refuse") -> Judged:
    """The judged answers of anything that `read_rows` reads; see `as_judged`."""
    return as_judged(read_rows(source), bad_rows)


def as_pairs(rows: Iterable[Any], bad_rows: BadRows = "refuse") -> Pairs:
    """Rows with chosen and rejected, and a prompt of their own or one that both sides begin with, as conversations.

    Args:
        rows: mappings. Texts, or lists of messages; an optional number `margin`; other columns are kept.
        bad_rows: "drop" leaves out pairs whose sides are empty or the same, or whose prompts differ, and counts them.

    Raises:
        UsageError: no rows, no such columns, a bad row, or none that is left.
    """
    rows = _table(rows, ("chosen", "rejected"))
    implicit = "prompt" not in rows[0]
    kept, dropped = _sorted_out(rows, pair_of, bad_rows, "pair")
    numbers = [number for number, _ in kept]
    found = [pair for _, pair in kept]
    margins = [_margin(number, rows[number]["margin"]) for number in numbers] if "margin" in rows[0] else None
    said = [*dropped, *_twice_or_turned([_key(*pair) for pair in found])]
    if implicit:
        said.append("there is no column prompt: the prompt is what the chosen and the rejected conversation share")
    return Pairs(
        prompts=[prompt for prompt, _, _ in found],
        chosen=[chosen for _, chosen, _ in found],
        rejected=[rejected for _, _, rejected in found],
        margins=margins,
        columns=_others(rows, numbers, (*_PAIR, "margin")),
        rows=numbers,
        said=tuple(said),
    )


def as_judged(rows: Iterable[Any], bad_rows: BadRows = "refuse") -> Judged:
    """Rows with prompt, completion and label (true or false), or pairs, each of which is a wanted and an unwanted one.

    Raises:
        UsageError: as `as_pairs`, or all labels are the same.
    """
    rows = list(rows)
    if rows and isinstance(rows[0], Mapping) and {"chosen", "rejected"} <= set(rows[0]):
        return _unpaired(as_pairs(rows, bad_rows))
    rows = _table(rows, _JUDGED)
    kept, said = _sorted_out(rows, judged_of, bad_rows, "row")
    numbers = [number for number, _ in kept]
    labels = [label for _, (_, _, label) in kept]
    if len(set(labels)) < 2:
        raise UsageError(
            f"all {len(labels)} rows have the label {str(labels[0]).lower()}, and wanted answers are told from "
            "unwanted ones only where both are there; add rows of the other kind, or train on the wanted ones "
            "(kleash sft)"
        )
    noisy = _contradicted([_key(prompt, answer) for _, (prompt, answer, _) in kept], labels)
    if noisy:
        said.append(f"label noise: {noisy} rows have the answer of another row and the opposite label")
    return Judged(
        prompts=[prompt for _, (prompt, _, _) in kept],
        completions=[answer for _, (_, answer, _) in kept],
        labels=labels,
        columns=_others(rows, numbers, _JUDGED),
        rows=numbers,
        said=tuple(said),
    )


def _unpaired(pairs: Pairs) -> Judged:
    """Both sides of each pair, one after the other."""
    return Judged(
        prompts=[prompt for prompt in pairs.prompts for _ in range(2)],
        completions=[answer for both in pairs.answers for answer in both],
        labels=[True, False] * len(pairs.prompts),
        columns={name: [value for value in column for _ in range(2)] for name, column in pairs.columns.items()},
        rows=[row for row in pairs.rows for _ in range(2)],
        said=(*pairs.said, "these are pairs: each chosen answer is a wanted row, each rejected one an unwanted row"),
    )


def _table(rows: Iterable[Any], needed: Sequence[str]) -> list[Mapping[str, Any]]:
    if isinstance(rows, Mapping) or hasattr(rows, "columns"):
        raise UsageError("these are columns or splits; give one split of a DatasetDict, or a list of rows")
    found = list(rows)
    if not found:
        raise UsageError("there are no rows")
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise UsageError(f"row {number} must be a table row with {', '.join(needed)}; it is {row!r:.80}")
        missing = [name for name in needed if name not in row]
        if missing:
            raise UsageError(
                f"row {number} has no column {missing[0]!r}; it has {', '.join(sorted(map(str, row)))}, and needed are "
                f"{', '.join(needed)}"
            )
        if set(row) != set(found[0]):
            raise UsageError(
                f"row {number} has the columns {sorted(row)}, and row 0 has {sorted(found[0])}; they must agree"
            )
    return found


def _sorted_out(
    rows: Sequence[Mapping[str, Any]], read: Any, bad_rows: BadRows, what: str
) -> tuple[list[Any], list[str]]:
    """What `read` makes of each row with its number, and a sentence on those left out."""
    kept: list[tuple[int, Any]] = []
    bad: dict[int, str] = {}
    for number, row in enumerate(rows):
        try:
            kept.append((number, read(row)))
        except BadRowError as error:
            bad[number] = str(error)
    if not bad:
        return kept, []
    first = min(bad)
    if bad_rows == "refuse" or not kept:
        more = f" ({len(bad)} of {len(rows)} rows are bad)" if len(bad) > 1 else ""
        raise UsageError(
            f"{what} {first}: {bad[first]}{more}; mend the data"
            + ("" if bad_rows == "drop" else ', or set data.bad_rows = "drop" to leave such rows out')
        )
    counted = ", ".join(f"{n} × {why}" for why, n in Counter(bad.values()).most_common())
    return kept, [f"{len(bad)} of {len(rows)} rows were left out, the first of them row {first}: {counted}"]


def _margin(number: int, value: Any) -> float:
    try:
        margin = float(value)
    except (TypeError, ValueError):
        margin = math.nan
    if not math.isfinite(margin):
        raise UsageError(f"pair {number}: the margin {value!r:.40} is not a number; leave the column out, or fill it")
    return margin


def _others(rows: Sequence[Mapping[str, Any]], numbers: list[int], taken: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [rows[i][name] for i in numbers] for name in rows[0] if name not in taken}


def _key(*parts: Any) -> tuple[str, ...]:
    return tuple(json.dumps(part, sort_keys=True, default=str) for part in parts)


def _twice_or_turned(keys: list[tuple[str, ...]]) -> Iterator[str]:
    """Pairs that say the same twice, and pairs that say the opposite of each other."""
    counts = Counter(keys)
    twice = sum(n - 1 for n in counts.values())
    if twice:
        yield f"{twice} pairs stand in the data more than once"
    turned = sum(min(n, counts[p, r, c]) for (p, c, r), n in counts.items() if c < r and (p, r, c) in counts)
    if turned:
        first = next(i for i, (p, c, r) in enumerate(keys) if (p, r, c) in counts)
        yield (
            f"label noise: {turned} pairs also stand the other way round, with chosen and rejected exchanged (the "
            f"first is pair {first} of those read); at most {1 - turned / len(keys):.0%} of the labels can be met"
        )


def _contradicted(keys: list[tuple[str, ...]], labels: list[bool]) -> int:
    """Rows whose answer another row has with the opposite label; of each, the fewer."""
    by_key: dict[tuple[str, ...], Counter[bool]] = {}
    for key, label in zip(keys, labels, strict=True):
        by_key.setdefault(key, Counter())[label] += 1
    return sum(min(counts[True], counts[False]) for counts in by_key.values())
