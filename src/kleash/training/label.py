"""`kleash label`: pairs of answers in, preferences out, by a judge. Ties and failures are kept apart, and counted."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kleash.errors import RunError, UsageError
from kleash.records import Prompt
from kleash.rewards.judge import Judge, Preference
from kleash.rewards.judge.bias import Interval, agreement
from kleash.rewards.judge.report import Report
from kleash.rewards.judge.server import ABSENT, HALF, SILENT
from kleash.training.pair_rows import Answer, BadRowError, pair_of
from kleash.training.prompt_files import read_rows
from kleash.whole import write_whole

#: What the two answers of a row may be called.
SIDES = (("a", "b"), ("chosen", "rejected"))


class _Pair(NamedTuple):
    """A row that can be judged: its number, the prompt, and both answers as text."""

    number: int
    prompt: Prompt
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """What came of it. pairs: rows read; failed: rows without a preference, by reason; files: those written.

    agreement: share of decided pairs on which judge and labels agree; None where there were no labels.
    """

    pairs: int
    labelled: int
    ties: int
    failed: dict[str, int]
    agreement: Interval | None
    judge: Report
    files: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        lost = sum(self.failed.values())
        told = [f"{self.pairs} pairs: {self.labelled} labelled, {self.ties} ties, {lost} without a preference"]
        told += [f"  {count} × {reason}" for reason, count in sorted(self.failed.items())]
        if self.agreement is not None:
            a = self.agreement
            told.append(f"agrees with the labels in {a.value:.1%} ({a.low:.1%} to {a.high:.1%}, {a.n} decided pairs)")
        return [*told, *self.judge.lines(), *(f"wrote {file}" for file in self.files)]


def label(
    source: str | Path,
    judge: Judge,
    out: str | Path,
    *,
    tie: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Labelled:
    """Judges the pairs of `source` and writes those with a preference to `out`, a file of pairs to train on.

    Args:
        source: rows with `prompt` and `a`, `b`, or with `chosen` and `rejected`; any format that prompts have.
        tie: how near to 1/2 a probability is a tie.

    Raises:
        UsageError: the source has no such columns, `out` is the source, or `tie` is no half of a probability.
        RunError: the judge's server is gone, or there is not one verdict. What was answered is in the judge's cache.
    """
    out = check(source, out, tie)
    if judge.spec.mode != "pairwise" or judge.spec.reference is not None or judge.spec.rivals != "all":
        raise UsageError(
            "the judge of kleash label compares the two answers of a row; leave out mode, reference, rivals"
        )
    rows = read_rows(source)
    sides = _sides(rows)
    pairs, bad = _pairs(rows, sides)
    found = judge.compare([p.prompt for p in pairs], [p.a for p in pairs], [p.b for p in pairs], progress)
    judged = dict(zip([p.number for p in pairs], found, strict=True))
    report = judge.report()
    _check(judge, report, any(one.probability is not None for one in found))
    return _written(rows, judged, bad, sides, (out, tie, report))


def check(source: str | Path, out: str | Path, tie: float) -> Path:
    """`out`, once it and `tie` are known to be good.

    Raises:
        UsageError: they are not.
    """
    out = Path(out)
    if not 0 <= tie < 0.5:
        raise UsageError(f"tie = {tie} is a distance from 1/2: at least 0 and below 0.5")
    if out.suffix != ".jsonl" or out.resolve() == Path(source).resolve():
        raise UsageError(f"the labelled pairs go to another .jsonl file than the pairs, not to {out}")
    return out


def now_and_then(say: Callable[[str], None], what: str, seconds: float = 5.0) -> Callable[[int, int], None]:
    """Says how much is done, at most so often."""
    last = time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            say(f"{done} of {total} {what}")

    return progress


def _sides(rows: Sequence[Any]) -> tuple[str, str]:
    if not rows:
        raise UsageError("there are no pairs to label")
    first = rows[0]
    for sides in SIDES:
        if isinstance(first, Mapping) and set(sides) <= set(first):
            return sides
    there = ", ".join(sorted(map(str, first))) if isinstance(first, Mapping) else "text alone"
    raise UsageError(f"a pair has the columns prompt, a and b, or prompt, chosen and rejected; row 0 has {there}")


def _pairs(rows: Sequence[Any], sides: tuple[str, str]) -> tuple[list[_Pair], dict[int, str]]:
    """The rows that can be judged, and why the others cannot."""
    pairs: list[_Pair] = []
    bad: dict[int, str] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping) or not set(sides) <= set(row):
            raise UsageError(f"row {number} has no {sides[0]} and {sides[1]}, as row 0 has")
        asked = {"prompt": row["prompt"]} if "prompt" in row else {}
        try:
            prompt, a, b = pair_of({**asked, "chosen": row[sides[0]], "rejected": row[sides[1]]})
            pairs.append(_Pair(number, prompt, _text(a), _text(b)))
        except BadRowError as error:
            bad[number] = str(error).replace("chosen", sides[0]).replace("rejected", sides[1])
    return pairs, bad


def _text(answer: Answer) -> str:
    return answer if isinstance(answer, str) else answer[0]["content"]


def _check(judge: Judge, report: Report, any_verdict: bool) -> None:
    kept = "" if judge.cache is None else f"; what was answered is in {judge.cache.path}, and the same command goes on"
    if report.failures.get(ABSENT):  # what broke off or stayed silent before that is of the same death
        gone = sum(report.failures.get(reason, 0) for reason in (ABSENT, HALF, SILENT))
        raise RunError(
            f"judge {judge.name}: the server could not be reached for {gone} of {report.questions} questions, so "
            f"nothing was written{kept}"
        )
    if not any_verdict:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in report.failures.items())
        raise RunError(
            f"judge {judge.name}: not one verdict on {report.questions} questions: {reasons or 'no good pair'}"
        )


def _written(
    rows: Sequence[Mapping[str, Any]],
    judged: Mapping[int, Preference],
    bad: Mapping[int, str],
    sides: tuple[str, str],
    how: tuple[Path, float, Report],
) -> Labelled:
    out, tie, report = how
    decided: list[dict[str, Any]] = []
    even: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    agreed: list[bool] = []
    for number, row in enumerate(rows):
        one = judged.get(number)
        if one is None or one.probability is None:
            reason = bad[number] if one is None else " and ".join(dict.fromkeys(one.reasons))
            failed.append({**row, "reason": reason})
        elif abs(one.probability - 0.5) <= tie:
            even.append({**row, "probability": one.probability})
        else:
            decided.append(_decided(row, one.probability, sides))
            agreed.append(one.probability > 0.5)
    parts = {out: decided, out.with_suffix(".ties.jsonl"): even, out.with_suffix(".failed.jsonl"): failed}
    return Labelled(
        pairs=len(rows),
        labelled=len(decided),
        ties=len(even),
        failed=dict(Counter(row["reason"] for row in failed)),
        agreement=agreement(agreed) if sides == ("chosen", "rejected") else None,
        judge=report,
        files=tuple(str(path) for path, lines in parts.items() if _write(path, lines)),
    )


def _decided(row: Mapping[str, Any], probability: float, sides: tuple[str, str]) -> dict[str, Any]:
    """probability: that chosen is better; margin: by how much more probable that is than the contrary."""
    better, worse = sides if probability > 0.5 else sides[::-1]
    sure = max(probability, 1 - probability)
    rest = {name: value for name, value in row.items() if name not in sides}
    return {**rest, "chosen": row[better], "rejected": row[worse], "probability": sure, "margin": 2 * sure - 1}


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> bool:
    """The whole file or none: what an earlier run left there is gone. Whether there is one."""
    if not rows:
        path.unlink(missing_ok=True)
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(json.dumps(row, default=str) + "\n" for row in rows))
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from None
    return True
