"""How the numbers of an audit are written and named, the same wherever they are shown."""

import math
import re
from typing import Literal

from kleash.drift.records import PREDICTED, Audit, Distribution, Interval, Kind, Score, Side, Tail, Verdict

UNMEASURED = "–"

#: How a verdict looks: well, mixed, badly, or not known.
Tone = Literal["good", "mixed", "bad", "unknown"]
TONES: dict[Verdict, Tone] = {
    "insufficient evidence": "unknown",
    "party trick": "bad",
    "damaged": "bad",
    "drifted for nothing": "bad",
    "improved at a price": "mixed",
    "improved, still itself": "good",
    "unchanged": "good",
}

#: What stands before a number that is not the exact KL.
SIGNS: dict[Kind, str] = {"exact": "", "lower bound": "≥ ", "sampled": "≈ "}
KINDS: dict[Kind, str] = {
    "exact": "exact KL",
    "lower bound": "a lower bound on the KL",
    "sampled": "KL estimated from sampled tokens",
}


def exit_code(audit: Audit) -> int:
    """Only gates fail: 2 where one could not be judged, 1 where one failed, else 0, whatever the verdict."""
    if any(gate.passed is None for gate in audit.gates):
        return 2
    return int(any(gate.passed is False for gate in audit.gates))


def gates_line(audit: Audit) -> str:
    """ "2 gates failed (exit 1)"; "" without gates."""
    if not audit.gates:
        return ""
    unknown = sum(gate.passed is None for gate in audit.gates)
    failed = sum(gate.passed is False for gate in audit.gates)
    told = [counted(failed, "gate") + " failed" if failed else "", f"{unknown} not measured" if unknown else ""]
    told = [part for part in told if part] or [counted(len(audit.gates), "gate") + " passed"]
    return f"{', '.join(told)} (exit {exit_code(audit)})"


def gate_mark(passed: bool | None) -> str:
    return "?" if passed is None else "pass" if passed else "FAIL"


def nats(value: float | None) -> str:
    """Three decimals, more where it is small, fewer where it is large."""
    if value is None or not math.isfinite(value):
        return UNMEASURED
    size = abs(value)
    if size >= 1e6:
        return f"{value:.3g}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    if size >= 0.01:
        return f"{value:.3f}"
    return "0" if value == 0 else f"{value:.2g}".replace("e-0", "e-")


def bounds(interval: Interval, write=nats) -> str:
    """ "[0.188, 0.239]", or why there is no interval."""
    if interval.low is None or interval.high is None:
        return f"[{interval.warning or 'no interval'}]"
    return f"[{write(interval.low)}, {write(interval.high)}]" + (" *" if interval.warning else "")


def with_bounds(interval: Interval | None, kind: Kind = "exact") -> str:
    if interval is None:
        return "not measured"
    return f"{SIGNS[kind]}{nats(interval.value)} {bounds(interval)}"


def mean_kl(tail: Tail | None, kind: Kind = "exact") -> str:
    """A direction's mean with its interval."""
    return with_bounds(None if tail is None else tail.mean, kind)


def percent(interval: Interval | None) -> str:
    return "not measured" if interval is None else share(interval.value)


def share(value: float | None) -> str:
    if value is None:
        return UNMEASURED
    if 0.99 < value < 1:
        return f"{100 * value:.1f} %" if value < 0.9995 else "> 99.9 %"
    return f"{100 * value:.0f} %" if value == 0 or value >= 0.1 else f"{100 * value:.1f} %"


def change(score: Score) -> str:
    """ "+0.37 [+0.31, +0.43]"."""
    return f"{signed(score.change.value)} {bounds(score.change, signed)}"


def signed(value: float) -> str:
    return f"{value:+.2f}"


def counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def first_sentence(text: str) -> str:
    """Up to a full stop with a capital after it; those of numbers and names are none."""
    return re.split(r"(?<=\.) (?=[A-Z])", text, maxsplit=1)[0]


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def documents(of: Distribution) -> str:
    return counted(of.documents, "sample" if of.name in ("its own words", "the base's words") else "text")


def amount(of: Distribution) -> str:
    """Tokens, or bytes where the two models have no tokens in common."""
    return f"{of.bytes or 0:,} bytes" if of.tokens is None else f"{of.tokens:,} tokens"


def measured_on(audit: Audit) -> str:
    """ "exact KL, 41,208 tokens, set builtin-1 #c07e1f2a"."""
    with_kl = [each for each in audit.distributions if each.tokens is not None]
    kinds = list(dict.fromkeys(KINDS[each.kind] for each in with_kl)) or ["no KL was measured"]
    tokens = sum(each.tokens or 0 for each in audit.distributions)
    set_name = "" if audit.set_id is None else f", set {audit.set_id} #{(audit.set_hash or '')[:8]}"
    return f"{' and '.join(kinds)}, {tokens:,} tokens{set_name}"


def digest(side: Side) -> str:
    """The first digits of the hash of what tells it from others: its adapter, else its weights."""
    found = side.fingerprint.get("adapter") or side.fingerprint.get("weights")
    return f"{found[:8]}…" if found else ""


def side_line(side: Side) -> str:
    step = None if side.step is None else f"step {side.step}"
    parts = [side.name, step, side.adapter or (side.kind if side.kind != "model" else None), side.quantised]
    return " ".join(part for part in [*parts, side.dtype, digest(side)] if part)


def named(audit: Audit, name: str) -> Distribution | None:
    return next((each for each in audit.distributions if each.name == name), None)


def first_kl(audit: Audit) -> tuple[Distribution, Literal["forward", "reverse"], Interval] | None:
    """The KL to quote where there is room for one: off task, base‖tuned; else the first that was measured."""
    order = sorted(audit.distributions, key=lambda each: each.name != "off task")
    for each in order:
        if each.forward is not None:
            return each, "forward", each.forward.mean
        if each.reverse is not None:
            return each, "reverse", each.reverse.mean
    return None


DIRECTIONS = {"forward": "base‖tuned", "reverse": "tuned‖base"}


def way(of: Distribution, direction: str) -> str:
    """ "base‖tuned", and what the numbers are if not the exact KL."""
    return DIRECTIONS[direction] + ("" if of.kind == "exact" else f", {of.kind}")


def yardsticks(audit: Audit) -> list[str]:
    """The KL in things a person can feel; what was not measured is left out."""
    by, floor, quoted = audit.yardsticks, audit.floor, first_kl(audit)
    if quoted is not None and not quoted[2].value:
        return []
    told = []
    if by.times_floor is not None and floor is not None:
        told.append(f"{times(by.times_floor)} the noise floor ({nats(floor.value)})")
    if by.four_bit is not None:
        told.append(four_bits(audit, by.four_bit))
    elif by.four_bit_scheme is not None:
        told.append(f"4 bits: {by.four_bit_scheme}")
    if by.temperature is not None:
        told.append(f"as far as temperature 1.00 → {by.temperature:.2f} would move it")
    return told


def predicted(audit: Audit) -> str:
    """ "the off-task texts 0.75 → 0.44, -0.32 [-0.36, -0.27] (…)"; "" where that was not measured."""
    off = named(audit, "off task")
    if off is None or off.prediction is None:
        return ""
    found = off.prediction
    change = f"{found.change.value:+.3f} {bounds(found.change, lambda value: f'{value:+.3f}')}"
    return f"the off-task texts {found.base:.2f} → {found.tuned:.2f}, {change} ({PREDICTED})"


def times(factor: float) -> str:
    """ "67 ×"; a model in one precision has a floor so low that the factor says nothing more."""
    return "over 1,000 ×" if factor > 1000 else f"{factor:.2g} ×" if factor < 10 else f"{factor:.0f} ×"


def four_bits(audit: Audit, kl: float) -> str:
    quoted = first_kl(audit)
    this = f"the base in 4 bits ({nats(kl)})"
    if quoted is None or kl <= 0:
        return this
    factor = quoted[2].value / kl
    return f"about {this}" if 0.8 <= factor <= 1.25 else f"{times(factor)} {this}"


def ends(of: Distribution) -> tuple[list[str], list[str]]:
    """The domains that moved most and least, three of each at most, none twice."""
    ordered = sorted(of.domains, key=lambda part: -part.forward.value)
    most = ordered[: min(3, (len(ordered) + 1) // 2)]
    least = ordered[max(len(most), len(ordered) - 2) :][::-1]
    return [f"{p.name} {nats(p.forward.value)}" for p in most], [f"{p.name} {nats(p.forward.value)}" for p in least]


def warnings(audit: Audit) -> list[str]:
    """What is to be known beside the numbers: intervals that are too small, tokens that were left out, parity."""
    told: dict[str, None] = {}
    for each in audit.distributions:
        for tail in (each.forward, each.reverse):
            if tail is not None and tail.mean.warning:
                told[f"{each.name}: {tail.mean.warning}"] = None
        if each.non_finite:
            told[f"{each.name}: {counted(each.non_finite, 'token')} not finite, left out of every mean"] = None
        if each.cut:
            told[f"{each.name}: {counted(each.cut, 'text')} cut at the context's end"] = None
        if each.new_mass:
            told[f"{each.name}: {share(each.new_mass)} of the tuned model's probability is on tokens new to it"] = None
    for score in audit.scores:
        if score.change.warning:
            told[f"{score.name}: {score.change.warning}"] = None
    return [*told, *audit.parity.notes]


def parity_line(audit: Audit) -> str:
    parity = audit.parity
    return f"tokenizer {parity.tokenizer}, template {parity.template}"
