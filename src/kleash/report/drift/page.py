"""The audit as one self-contained page: the answer first, then what it rests on, then the words themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kleash.drift.records import Audit, Distribution, Interval
from kleash.report import page
from kleash.report.drift import charts, heat, words
from kleash.report.forest import Forest
from kleash.report.samples import clip
from kleash.report.words import Tile

#: Rows of the tables of words and samples; the JSON has all of them.
MOST_PAIRS, MOST_MOVED = 16, 24
#: A bound of the whole page, for the samples and texts it may hold. See `heat.MOST_TOKENS` for the other part.
OFF_TASK = "off task"


def write_page(audit: Audit, path: Path) -> Path:
    """Writes the page and returns its path.

    Raises:
        RunError: it cannot be written.
    """
    return page.write(path, "drift.html.j2", **content(audit))


def view(audit: Audit) -> str:
    """The answer, the KLs and the scores, for a notebook."""
    return page.view("drift_view.html.j2", **content(audit))


def content(audit: Audit) -> dict[str, Any]:
    judged = audit.judgement
    return {
        "title": f"{audit.base.name} → {audit.tuned.name}",
        "audit": audit,
        "tone": words.TONES[judged.verdict],
        "because": judged.because[:1].upper() + judged.because[1:],
        "gates_line": words.gates_line(audit),
        "gate_mark": words.gate_mark,
        "tiles": tiles(audit),
        "rows": [kl_row(each) for each in audit.distributions],
        "bytes": [each for each in audit.distributions if each.bits_per_byte is not None],
        "sampled": [each for each in audit.distributions if each.sampled is not None],
        "with_bounds": words.with_bounds,
        "warnings": words.warnings(audit),
        "yardsticks": words.yardsticks(audit),
        "predicted": words.predicted(audit),
        "forests": forests(audit),
        "score_chart": charts.scores(audit),
        "score_rows": [(score, words.change(score)) for score in audit.scores],
        "maps": [(each, shown) for each in audit.distributions if (shown := heat.shown(each.passages))],
        "legend": heat.legend(),
        "prompts": prompts(audit),
        "moved": [(each.name, each.moved[:MOST_MOVED]) for each in audit.distributions if each.moved],
        "visible": heat.visible,
        "nats": words.nats,
        "clip": clip,
        "style_rows": style_rows(audit),
        "openings": openings(audit),
        "pairs": audit.pairs[:MOST_PAIRS],
        "facts": facts(audit),
    }


@dataclass(frozen=True, slots=True)
class KLRow:
    """One set of texts in the table of KLs, written out."""

    name: str
    counts: str
    forward: str
    reverse: str
    jensen_shannon: str
    same_top1: str
    flips: str
    delta: str
    kind: str


def kl_row(of: Distribution) -> KLRow:
    sure = "" if of.sure_flips is None else f", {of.sure_flips:,} beyond rounding"
    return KLRow(
        name=of.name,
        counts=f"{words.documents(of)}, {words.amount(of)}",
        forward=words.mean_kl(of.forward, of.kind),
        reverse=words.mean_kl(of.reverse, of.kind),
        jensen_shannon=one(of.jensen_shannon),
        same_top1=words.percent(of.same_top1),
        flips="" if of.flips is None else f"{of.flips:,} changed{sure}",
        delta=one(of.delta),
        kind=words.KINDS[of.kind],
    )


def one(interval: Interval | None) -> str:
    return words.UNMEASURED if interval is None else words.nats(interval.value)


def tiles(audit: Audit) -> list[Tile]:
    """The numbers to know first; what was not measured has no tile."""
    found = []
    quoted = words.first_kl(audit)
    if quoted is not None:
        of, direction, mean = quoted
        small = f"{words.bounds(mean)} nats/token, {words.DIRECTIONS[direction]}"
        found.append(Tile(f"KL {of.name}", words.SIGNS[of.kind] + words.nats(mean.value), small))
        if of.same_top1 is not None:
            found.append(Tile("Same likeliest token", words.percent(of.same_top1), of.name))
    if audit.yardsticks.times_floor is not None and audit.floor is not None:
        small = f"the noise floor is {words.nats(audit.floor.value)} nats/token"
        found.append(Tile("Above rounding", words.times(audit.yardsticks.times_floor), small))
    task = next((score for score in audit.scores if score.role == "task"), None)
    if task is not None:
        small = f"{words.bounds(task.change, words.signed)}; {task.base:.2f} → {task.tuned:.2f}"
        found.append(Tile(f"Score: {words.cut(task.name, 24)}", words.signed(task.change.value), small))
    return found


def forests(audit: Audit) -> list[Forest]:
    """Domains first, then the tail, then where in a text it moved; of the first set of texts that has each."""
    floor = None if audit.floor is None else audit.floor.value
    found = []
    for what in charts.TITLES:
        of = next((each for each in ordered(audit.distributions) if getattr(each, what)), None)
        found.append(None if of is None else charts.parts(of, what, floor if what == "domains" else None))
    return [chart for chart in (found[0], charts.tails(audit), *found[1:]) if chart is not None]


def ordered(distributions: Sequence[Distribution]) -> list[Distribution]:
    return sorted(distributions, key=lambda each: each.name != OFF_TASK)


def prompts(audit: Audit) -> list[tuple[str, str, str]]:
    """The texts that moved most: where from, the prompt's beginning, its mean KL."""
    all_of_them = [(each, passage) for each in audit.distributions for passage in each.passages]
    most = sorted(all_of_them, key=lambda pair: -pair[1].forward)[:12]
    return [
        (f"{each.name}, {passage.id}", words.cut(" ".join(passage.prompt.split()), 160), words.nats(passage.forward))
        for each, passage in most
    ]


def style_rows(audit: Audit) -> list[tuple[str, str, str, str]]:
    """Name, base, tuned and unit of what was measured on either side."""
    if audit.style is None:
        return []
    rows = []
    for name, before in audit.style.base.items():
        after = audit.style.tuned.get(name)
        if before is not None or after is not None:
            unit = audit.style.units.get(name, "")
            rows.append((name.replace("_", " "), in_unit(before, unit), in_unit(after, unit), unit))
    return rows


def in_unit(value: float | None, unit: str) -> str:
    return words.share(value) if unit == "share" else words.nats(value)


def openings(audit: Audit) -> list[tuple[str, list[tuple[str, int]]]]:
    return [] if audit.style is None else [(side, found) for side, found in audit.style.openings.items() if found]


def facts(audit: Audit) -> list[tuple[str, str]]:
    """What was measured, with what, how; what is unknown is left out."""
    parity, floor = audit.parity, audit.floor
    found: list[tuple[str, str | None]] = [
        ("Base", words.side_line(audit.base)),
        ("Tuned", words.side_line(audit.tuned)),
        ("Measured", words.measured_on(audit)),
        ("Set", None if audit.set_id is None else f"{audit.set_id}, SHA-256 {audit.set_hash}"),
        ("Tokenizer", parity.tokenizer),
        ("Vocabulary", " and ".join(f"{rows:,}" for rows in parity.vocabulary) + " rows"),
        ("Rows masked", f"{parity.masked_rows:,}" if parity.masked_rows else None),
        ("Template", f"{parity.template}; used: {parity.used_template}"),
        ("Special tokens", parity.special_tokens),
        ("Noise floor", None if floor is None else floor_line(floor.value, floor.by)),
        ("Four bits", audit.yardsticks.four_bit_scheme),
        ("Fingerprint, base", fingerprint(audit.base.fingerprint)),
        ("Fingerprint, tuned", fingerprint(audit.tuned.fingerprint)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in audit.versions.items())),
        ("Seed", str(audit.seed)),
        ("Made", f"{audit.made}, in {audit.seconds:.0f} s"),
    ]
    return [(name, value) for name, value in found if value]


def floor_line(value: float, by: dict[str, float]) -> str:
    varied = ", ".join(f"{name} {words.nats(one)}" for name, one in by.items())
    return f"{words.nats(value)} nats/token ({varied})"


def fingerprint(of: dict[str, Any]) -> str:
    told = [(name, str(value)) for name, value in of.items() if value is not None]
    return ", ".join(f"{name} {value[:12] if len(value) > 40 else value}" for name, value in told)
