"""What is said of a watched log, line by line: the same on a terminal, on the page and when it is pasted elsewhere."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kleash.monitor.record import RECORD
from kleash.report.charts import short
from kleash.report.watch.case import Case
from kleash.report.watch.price import price_of
from kleash.runlog.findings import dated, told
from kleash.runlog.series import Column, KLTag

Tone = Literal["", "good", "mixed", "bad", "soft"]
TONES: dict[str, Tone] = {"alarm": "bad", "warning": "mixed", "note": "soft"}
MEANINGS = {
    "kl_ref": "drift from the reference",
    "kl_old": "size of an update, not drift",
    "kl_sampler": "mismatch of sampler and trainer, not drift",
    "kl_kto": "KTO's batch baseline, not drift",
}
#: Columns that tell how the text is, by what a reader calls them.
TEXT = {
    "length": "length",
    "truncated": "cut at the limit",
    "seq_rep_4": "seq-rep-4",
    "distinct_2": "distinct-2",
    "compression_ratio": "compression",
    "entropy": "entropy",
}
MOST_ADVICE = 5
#: Of what was missing so much is told here; the JSON has all.
MOST_NEEDS = 4
SPARKS = "▁▂▃▄▅▆▇█"
NUMBERS = {1: "one sign", 2: "two independent signs", 3: "three independent signs", 4: "four independent signs"}


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to know: a label, what is said, and commands that must stay in one piece."""

    label: str
    text: str
    tone: Tone = ""
    command: bool = False


def headline(case: Case) -> Line:
    said = case.said
    if said.verdict == "not evaluated":
        return Line("", "NOTHING TO JUDGE BY: no rule has what it needs", "mixed")
    if said.verdict == "healthy":
        notes = len(said.findings)
        told = f"; {notes} note{'' if notes == 1 else 's'}" if notes else ""
        judged, rules = len(said.evaluated), len(said.evaluated) + len(said.not_evaluated)
        return Line("", f"HEALTHY as far as {judged} of {rules} rules can tell{told}", "good")
    first = case.grave[0]
    signs = first.numbers.get("signs")
    parts = [
        f"{said.headline} since step {dated(said.since, said.within)}",
        NUMBERS.get(int(signs), f"{signs:g} independent signs") if isinstance(signs, int | float) else "",
        first.sure,
    ]
    return Line("", ", ".join(part for part in parts if part), TONES[first.severity])


def lines(case: Case) -> list[Line]:
    """All that is said under the headline, in reading order."""
    return [
        *log_lines(case),
        *series_lines(case),
        *found_lines(case),
        *checkpoint_lines(case),
        *do_lines(case),
        *unknown_lines(case),
        record_line(),
    ]


# ── what the log is ────────────────────────────────────────────────────────────────────────────────────────


def log_lines(case: Case) -> Iterator[Line]:
    log = case.log
    every = f", every {log.smoothing} steps (spikes are smoothed {log.smoothing}×)" if log.smoothing > 1 else ""
    ended = f", ended: {log.ended}" if log.ended else ""
    rows = f"{len(log.step):,} row{'' if len(log.step) == 1 else 's'}"
    yield Line("log", f"{log.label}{every}, {rows} up to step {log.step[-1]:,}{ended}")
    for name, tag in log.kl.items():
        if name == "kl_ref" or (tag.state == "measured" and "/" not in name):
            yield Line("", kl_text(tag))
    for note in log.notes:
        yield Line("", f"note: {note}", "soft")


def kl_text(tag: KLTag) -> str:
    """What a log's KL means: which KL, how estimated, in what unit, and its traps."""
    if tag.state == "absent" or tag.key is None:
        return f"no KL to a reference: {tag.note}" if tag.note else "no KL to a reference in this log"
    if tag.state != "measured":
        how = "is logged as 0: that is not measured" if tag.state == "logged as 0" else "is never a number"
        return f"`{tag.key}` {how}" + (f"; {tag.note}" if tag.note else "")
    unit = None if tag.unit is None else tag.unit.replace("nats/", "per ")
    clamp = None if tag.clamp is None else f"cut at {tag.clamp:g} nats"
    known = [part for part in (MEANINGS[tag.meaning], tag.estimator, unit, clamp) if part]
    return f"`{tag.key}` = {', '.join(known)}" + (f" ({tag.note})" if tag.note else "")


# ── how its numbers went ───────────────────────────────────────────────────────────────────────────────────


def series_lines(case: Case) -> Iterator[Line]:
    log = case.log
    if (told := kl_course(case)) is not None:
        yield Line("kl", told)
    if (reward := course(case.finite("reward"), spark=True)) is not None:
        parts = [f"{name} {told}" for name, x in log.family("reward/").items() if (told := course(finite(x)))]
        yield Line("reward", reward + (f"   of it {', '.join(parts[:4])}" if len(parts) > 1 else ""))
    truth = {**log.family("held_out/"), **{f"gold {name}": x for name, x in log.family("gold/").items()}}
    held = [f"{name} {told}" for name, x in truth.items() if (told := course(finite(x)))]
    if held:
        yield Line("held out", ", ".join(held[:4]))
    if (told := price_of(log, case.said.since)) is not None:
        yield Line("price", told)
    texts = [f"{name} {told}" for column, name in TEXT.items() if (told := course(case.finite(column)))]
    if texts:
        yield Line("text", ", ".join(texts))


def kl_course(case: Case) -> str | None:
    """From … to … in nats per sequence where the lengths are known, else per token; and beta."""
    parts = []
    for column, unit in (("kl_ref_sequence", "nats/sequence"), ("kl_ref", "nats/token")):
        if (told := course(case.finite(column), spark=not parts)) is not None:
            parts.append(f"{told} {unit}")
    beta = case.finite("beta")
    if beta is not None and len(beta):
        held = float(beta.min()) == float(beta.max())
        parts.append(f"beta {short(float(beta[-1]))}" if held else f"beta {short(float(beta[0]))} → {ends(beta)[1]}")
    return ", ".join(parts) or None


def course(x: Column | None, *, spark: bool = False) -> str | None:
    """ "0.52 → 0.91  ▁▂▃█": means of the first and of the last tenth."""
    if x is None or not len(x):
        return None
    first, last = ends(x)
    drawn = f"  {sparkline(x)} " if spark and len(x) > 2 else ""
    return f"{first} → {last}{drawn}" if len(x) > 1 else first


def ends(x: Column) -> tuple[str, str]:
    """Three digits are enough to read."""
    tenth = max(1, len(x) // 10)
    first, last = float(np.mean(x[:tenth])), float(np.mean(x[-tenth:]))
    return short(float(f"{first:.3g}")), short(float(f"{last:.3g}"))


def sparkline(x: Column, cells: int = 12) -> str:
    """The series as a row of blocks, each the mean of a stretch; its own lowest is the lowest block."""
    means = [float(part.mean()) for part in np.array_split(x, min(cells, len(x)))]
    low, high = min(means), max(means)
    if not high > low:
        return SPARKS[0] * len(means)
    return "".join(SPARKS[round((value - low) / (high - low) * (len(SPARKS) - 1))] for value in means)


def finite(x: Column) -> Column:
    return x[np.isfinite(x)]


# ── what was found, and what to do ─────────────────────────────────────────────────────────────────────────


def found_lines(case: Case) -> Iterator[Line]:
    """The findings, the gravest first; one that sums up others is the headline already."""
    for finding in case.said.findings:
        if finding.headline == case.said.headline and "signs" in finding.numbers:
            continue
        yield Line(finding.severity, told(finding), TONES[finding.severity])
    quoted = next((finding for finding in case.grave if finding.before and finding.after), None)
    if quoted is not None:
        yield Line("before", f"“{quote(quoted.before[0])}”", "soft")
        yield Line("after", f"“{quote(quoted.after[0])}”", "soft")


def quote(text: str, most: int = 160) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[:most] + "…"


def checkpoint_lines(case: Case) -> Iterator[Line]:
    said = case.said
    if said.clean is not None:
        yield Line("keep", f"{shown(said.clean)} (the last {'clean' if case.grave else 'one'})", "good")
    elif case.grave and case.log.checkpoints:
        yield Line("keep", "no checkpoint is from before the change", "bad")
    if said.suspect:
        first, *others = said.suspect
        yield Line("distrust", shown(first) + (f" … {others[-1].name}" if others else ""), "bad")


def shown(path: Path) -> str:
    """Relative to where the user is, where that is shorter."""
    near = os.path.relpath(path)
    return near if len(near) < len(str(path)) else str(path)


def drift_command(case: Case, clean: Path | None = None, suspect: Path | None = None) -> str | None:
    """The one command that compares both with the base; None without a pair."""
    clean, suspect = clean or case.said.clean, suspect or next(iter(case.said.suspect), None)
    if clean is None or suspect is None:
        return None
    base = "BASE" if case.base == "BASE" else shlex.quote(case.base)
    return f"kleash drift {base} {shlex.quote(shown(clean))} {shlex.quote(shown(suspect))}"


def do_lines(case: Case) -> Iterator[Line]:
    if (command := drift_command(case)) is not None:
        yield Line("do", command, command=True)
    advice = dict.fromkeys(line for finding in case.grave for line in finding.do)
    yield from (Line("do", line) for line in list(advice)[:MOST_ADVICE])


def unknown_lines(case: Case) -> Iterator[Line]:
    """Rules that had nothing to judge by, together where they lack the same thing."""
    needs = by_need(case)
    if needs:
        told = [f"{need} ({listed(rules, 2)})" for need, rules in needs.items()]
        count = len(case.said.not_evaluated)
        text = f"{count} rule{'' if count == 1 else 's'} not evaluated, for want of {listed(told, MOST_NEEDS, '; ')}"
        yield Line("unknown", text, "soft")


def record_line() -> Line:
    """How often verdicts like this one have been right."""
    false, found, real, warned = (
        f"{hits} of {runs}" for hits, runs in (RECORD.false_alarms, RECORD.found, RECORD.real_found, RECORD.real_warned)
    )
    text = (
        f"on runs whose truth is known: {false} simulated healthy runs got a false alarm (95 %: at most "
        f"{100 * RECORD.most_false:.1f} %), {found} gamed ones were found; of real runs {real} gamed ones were found, "
        f"and {warned} healthy ones got a warning"
    )
    return Line("record", text, "soft")


def by_need(case: Case) -> dict[str, list[str]]:
    """What rules lacked → their names; what most rules lacked first."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in case.said.not_evaluated:
        found[one.needs].append(one.rule)
    return dict(sorted(found.items(), key=lambda pair: -len(pair[1])))


def listed(names: Iterable[str], most: int, between: str = ", ") -> str:
    all_of_them = list(names)
    more = len(all_of_them) - most
    return between.join(all_of_them[:most]) + (f" and {more} more" if more > 0 else "")
