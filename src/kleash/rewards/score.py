"""Scoring a step's samples, and saying exactly what went wrong, with which sample, when a reward fails."""

import math
import numbers
import time
import traceback
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from kleash.errors import KleashError, RunError
from kleash.records import Prompt
from kleash.rewards import worker
from kleash.rewards.arguments import chosen, conversation, parameters_of
from kleash.rewards.load import Rewarder
from kleash.rewards.where import where

#: Seconds spent, after a failure, on calling the reward with one sample at a time to name the one it fails on.
SEARCH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Scored:
    """total: the weighted sum per sample, None where a reward that has weight gave None. by_name: each reward's own.

    members: of each ensemble, its members' scores, before they were combined.
    """

    total: list[float | None]
    by_name: dict[str, list[float | None]]
    members: dict[str, list[list[float | None]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Batch:
    prompts: list[Prompt]
    completions: list[str]
    columns: dict[str, list[Any]]

    def one(self, i: int) -> "_Batch":
        return _Batch([self.prompts[i]], [self.completions[i]], {n: [c[i]] for n, c in self.columns.items()})


class _FailedError(Exception):
    """What was wrong with a call, for the end of the sentence "reward 'x' …", and the sample if it is known."""

    def __init__(self, what: str, sample: int | None = None) -> None:
        super().__init__(what)
        self.sample = sample


def score(
    rewarders: Sequence[Rewarder],
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    columns: dict[str, list[Any]],
    *,
    trial: bool = False,
) -> Scored:
    """Every reward of every sample. All sequences, columns included, have one entry per completion.

    trial: a few samples cut short, of which it proves nothing that none has a score.

    Raises:
        RunError: a reward raised, hung, returned the wrong length or something other than finite numbers and None
            (the message names the reward and the sample), or no sample at all got a total score.
        UsageError: a reward needs a column that is not there.
    """
    batch = _Batch(list(prompts), list(completions), columns)
    wrong = [n for n, c in {"prompts": batch.prompts, **columns}.items() if len(c) != len(batch.completions)]
    if wrong:
        raise ValueError(f"{wrong} must have one entry for each of the {len(batch.completions)} completions")
    members = {r.name: [_scores(member, batch) for member in r.members] for r in rewarders if r.members}
    by_name = {r.name: _combined(r, members[r.name]) if r.members else _scores(r, batch) for r in rewarders}
    total = totals(rewarders, by_name)
    if total and not trial and all(value is None for value in total):
        counts = ", ".join(f"{n} for {sum(s is None for s in scores)}" for n, scores in by_name.items())
        raise RunError(
            f"no sample of {len(total)} has a score, so there is nothing to learn from: None came from {counts}. "
            "Return a number wherever the sample can be judged"
        )
    return Scored(total, by_name, members)


def totals(rewarders: Sequence[Rewarder], by_name: dict[str, list[float | None]]) -> list[float | None]:
    """The weighted sum of each sample; None where a reward that has weight has no score.

    Raises:
        RunError: a sum is too large for a float.
    """
    return [_total(rewarders, by_name, i) for i in range(len(next(iter(by_name.values()))))]


def _combined(ensemble: Rewarder, members: list[list[float | None]]) -> list[float | None]:
    """One number of the members' scores of each sample; None where one of them gave None."""
    return [None if None in row else ensemble.fn(list(row)) for row in zip(*members, strict=True)]


def _total(rewarders: Sequence[Rewarder], by_name: dict[str, list[float | None]], i: int) -> float | None:
    parts = [(r.weight, by_name[r.name][i]) for r in rewarders if r.weight != 0]
    known = [weight * value for weight, value in parts if value is not None]
    if len(known) < len(parts):
        return None
    total = sum(known, 0.0)
    if not math.isfinite(total):
        raise RunError(f"the weighted sum of the scores of sample {i} is too large for a float: {parts}")
    return total


def _scores(rewarder: Rewarder, batch: _Batch) -> list[float | None]:
    if not batch.completions:
        return []
    try:
        return _call(rewarder, batch, rewarder.timeout_s)
    except _FailedError as failure:
        n = len(batch.completions)
        if failure.sample is not None:
            place = f", sample {failure.sample} of {n} ({_shown(batch, failure.sample)})"
        elif (sample := _search(rewarder, batch)) is not None:
            place = f". On its own it fails first on sample {sample} of {n} ({_shown(batch, sample)})"
        else:
            place = f". It was called on {n} samples"
        raise RunError(f"reward {rewarder.name!r} {failure}{place}") from (failure.__cause__ or failure)


def _call(rewarder: Rewarder, batch: _Batch, seconds: float) -> list[float | None]:
    """One call, checked. Raises _FailedError, and KleashError as it is."""
    available = {
        **{name: _own(column) for name, column in batch.columns.items()},
        "prompts": _own(batch.prompts),
        "completions": list(batch.completions),
    }
    if any(p.name == "messages" for p in parameters_of(rewarder.fn) or []):
        available["messages"] = [
            conversation(p, c) for p, c in zip(_own(batch.prompts), batch.completions, strict=True)
        ]
    arguments = chosen(rewarder.fn, available)
    try:
        result = worker.call(lambda: rewarder.fn(**arguments), seconds)
    except (KleashError, KeyboardInterrupt):
        raise
    except worker.HungError as hung:
        raise _FailedError(
            f"had not returned after {seconds:g} s{where(hung.stack)}, and was left behind (timeout_s sets the limit)"
        ) from None
    except BaseException as error:
        place = where(traceback.extract_tb(error.__traceback__))
        raise _FailedError(f"raised {type(error).__name__}: {error}{place}") from error
    return _checked(result, len(batch.completions))


def _own(values: Sequence[Any]) -> list[Any]:
    """A copy down to the messages: a reward may sort its lists or go on with a conversation in place."""
    return [deepcopy(value) if isinstance(value, list | dict) else value for value in values]


def _checked(result: Any, n: int) -> list[float | None]:
    if hasattr(result, "tolist"):  # arrays, tensors, pandas series
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise _FailedError(f"returned a {type(result).__name__}, not a list with one score per completion")
    if len(result) != n:
        raise _FailedError(f"returned {len(result)} scores for {n} completion{'s' if n > 1 else ''}")
    return [_number(value, i) for i, value in enumerate(result)]


def _number(value: Any, i: int) -> float | None:
    if value is None:
        return None
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # numpy scalars, 0-d tensors
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise _FailedError(f"gave the {type(value).__name__} {value!r:.60} where a number or None belongs", i)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _FailedError(f"gave {number} where a finite number or None belongs", i)
    return number


def _search(rewarder: Rewarder, batch: _Batch) -> int | None:
    """The first sample on which the reward also fails alone; None if there is none within the time for it."""
    limit = min(SEARCH_SECONDS, rewarder.timeout_s or SEARCH_SECONDS)
    end = time.monotonic() + limit
    for i in range(len(batch.completions)):
        left = end - time.monotonic()
        # With less than half of the time left, being cut off would not mean that this sample hangs.
        if left < limit / 2:
            break
        try:
            _call(rewarder, batch.one(i), left if rewarder.timeout_s else 0)
        except _FailedError:
            return i
    return None


def _shown(batch: _Batch, i: int) -> str:
    prompt = batch.prompts[i]
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    return f"prompt {_short(text)}, completion {_short(batch.completions[i])}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
