"""The audit as a block of text: coloured on a terminal, and the same words when it is pasted into a model card."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.text import Text

from kleash.characters import printable
from kleash.drift.records import Audit, Score
from kleash.report.drift import words

COLOURS = {"good": "bold green", "mixed": "bold yellow", "bad": "bold red", "unknown": "bold"}
OUTCOMES = {"gained": "green", "LOST": "bold red", "no gain": "", "unclear": "dim"}


def block(audit: Audit, wrote: Sequence[Path] = (), hint: str | None = None) -> Text:
    """All lines. `wrote`: the files that hold more; `hint`: what to try instead."""
    return Text("\n").join(
        [
            *head(audit),
            *kl_table(audit),
            *tail(audit),
            *yardstick(audit),
            *moved(audit),
            *scores(audit),
            *style(audit),
            *ending(audit),
            *written(audit, wrote, hint),
        ]
    )


def head(audit: Audit) -> Iterator[Text]:
    judged = audit.judgement
    parts = [
        Text(judged.verdict.upper(), style=COLOURS[words.TONES[judged.verdict]]),
        Text(printable(judged.because)),
        Text(words.gates_line(audit), style="bold" if words.exit_code(audit) else ""),
    ]
    yield Text("   ").join(part for part in parts if part.plain)
    if audit.partial:
        yield Text(f"PARTIAL: {printable(audit.partial)}", style="yellow")
    yield Text(
        "   ".join(
            [
                f"base {printable(words.side_line(audit.base))}",
                f"tuned {printable(words.side_line(audit.tuned))}",
                printable(words.parity_line(audit)),
                words.measured_on(audit),
            ]
        ),
        style="dim",
    )


def kl_table(audit: Audit) -> Iterator[Text]:
    rows = [["KL nats/token (95 %, clustered)", "base||tuned", "tuned||base", "same top-1"]]
    rows += [
        [
            f" {each.name:<16} {words.documents(each)}",
            words.mean_kl(each.forward, each.kind),
            words.mean_kl(each.reverse, each.kind),
            words.percent(each.same_top1),
        ]
        for each in audit.distributions
        if each.bits_per_byte is None
    ]
    yield from columns(rows if len(rows) > 1 else [])
    for each in audit.distributions:
        if each.sampled is not None:
            yield Text(f" {each.name:<16} sampled estimate, unbiased: {words.with_bounds(each.sampled, 'sampled')}")
        if each.bits_per_byte is not None:
            base, tuned = each.bits_per_byte
            yield Text(f" {each.name:<16} bits per byte {base:.3f} -> {tuned:.3f} (other tokenizer: no KL)")


def tail(audit: Audit) -> Iterator[Text]:
    quoted = words.first_kl(audit)
    if quoted is None:
        return
    of, direction, _ = quoted
    one = of.forward if direction == "forward" else of.reverse
    assert one is not None
    parts = [
        f" tail {of.name}, {words.way(of, direction).replace('‖', '||')}",
        f"median {words.nats(one.median.value)}",
        f"95 % {words.nats(one.q95.value)}",
        f"99 % {words.nats(one.q99.value)}",
        f"max {words.nats(one.max)} ({printable(one.max_at)})",
    ]
    if one.top_share is not None:
        parts.append(f"top 1 % of tokens carry {words.share(one.top_share)}")
    yield Text("   ".join(parts))


def yardstick(audit: Audit) -> Iterator[Text]:
    told = words.yardsticks(audit)
    if predicted := words.predicted(audit):
        yield Text(f" predicts    {predicted}")
    if told:
        yield Text(f" yardstick   {'; '.join(told)}")
    if audit.forgetting:
        yield Text(f" forgetting  {printable(words.first_sentence(audit.forgetting))}")


def moved(audit: Audit) -> Iterator[Text]:
    off = next((each for each in audit.distributions if each.domains), None)
    if off is None or not any(part.forward.value for part in off.domains):
        return
    most, least = words.ends(off)
    way = words.way(off, "forward").replace("‖", "||")
    yield Text(f" moved most, {way}: {', '.join(most)}" + (f"      least  {', '.join(least)}" if least else ""))


def scores(audit: Audit) -> Iterator[Text]:
    if not audit.scores:
        return
    told = [score for score in audit.scores if score.role != "other" or score.outcome in ("gained", "LOST")]
    rows = [["Scores, paired", "base", "tuned", "change", ""]]
    rows += [
        [
            f" {words.cut(printable(score.name), 30)}{role(score)}",
            f"{score.base:.2f}",
            f"{score.tuned:.2f}",
            words.change(score),
            score.outcome,
        ]
        for score in told
    ]
    lines = list(columns(rows)) if told else [Text(rows[0][0], style="dim")]
    for line, score in zip(lines[1:], told, strict=True):
        line.stylize(OUTCOMES[score.outcome], len(line) - len(score.outcome))
    yield from lines
    for outcome in ("no gain", "unclear"):
        rest = [printable(score.name) for score in audit.scores if score not in told and score.outcome == outcome]
        if rest:
            yield Text(f" {outcome:<9} {', '.join(rest)}")


def role(score: Score) -> str:
    return {"task": " (yours)", "sibling": " (sibling)", "other": ""}[score.role]


def style(audit: Audit) -> Iterator[Text]:
    if audit.style is None:
        return
    told = [
        f"{name.replace('_', ' ')} {words.nats(before)} -> {words.nats(after)}{unit(audit, name)}"
        for name, before in audit.style.base.items()
        if before is not None and (after := audit.style.tuned.get(name)) is not None
    ]
    if told:
        yield Text(f" style       {', '.join(told[:4])}")


def unit(audit: Audit, name: str) -> str:
    assert audit.style is not None
    found = audit.style.units.get(name, "")
    return f" {found}" if found and found != "share" else ""


def ending(audit: Audit) -> Iterator[Text]:
    for note in words.warnings(audit):
        yield Text(f" * {printable(note)}", style="yellow")
    if audit.gates:
        line = Text("gates")
        for gate in audit.gates:
            line.append("  ").append(words.gate_mark(gate.passed), style="green" if gate.passed else "bold red")
            line.append(f" {printable(gate.text)}  ")
        yield line


def written(audit: Audit, wrote: Sequence[Path], hint: str | None) -> Iterator[Text]:
    parts = [f"wrote {'  '.join(map(str, wrote))}"] if wrote else []
    parts += [printable(hint)] if hint else []
    if parts:
        yield Text("    ".join(parts))
    yield Text(f"again: {printable(audit.command)}", style="dim")


def columns(rows: Sequence[Sequence[str]]) -> Iterator[Text]:
    """The rows with their columns under each other, three spaces apart; the first is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        text = "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield Text(text, style="" if number else "dim")
