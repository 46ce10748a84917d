"""Which charts an audit is shown by."""

from collections.abc import Sequence
from dataclasses import replace

from kleash.drift.records import Audit, Distribution, Interval, Part, Tail
from kleash.report.drift import words
from kleash.report.forest import Forest, Row

OUTCOME_COLOURS = {"gained": "c1", "LOST": "c4", "no gain": "c0", "unclear": "c0"}


def scores(audit: Audit) -> Forest | None:
    if not audit.scores:
        return None
    rows = [
        Row(
            name=score.name,
            value=score.change.value,
            low=score.change.low,
            high=score.change.high,
            tip=f"{score.name}\n{score.base:.3f} → {score.tuned:.3f}\n{words.change(score)}, {score.outcome}",
            tone=OUTCOME_COLOURS[score.outcome],
        )
        for score in audit.scores
    ]
    return Forest(
        title="Change of score",
        unit="tuned − base, paired by item",
        rows=rows,
        note="95 % intervals. Right of 0: the tuned model is better.",
    )


def parts(of: Distribution, what: str, floor: float | None) -> Forest | None:
    """One table of parts: "domains", "classes", "confidence" or "positions"."""
    found: Sequence[Part] = getattr(of, what)
    if not found:
        return None
    title, note = TITLES[what]
    together = any(part.simultaneous for part in found)
    kept = sorted(found, key=lambda part: -part.forward.value) if what == "domains" else found
    return Forest(
        title=title,
        unit=f"nats/token, {words.way(of, 'forward')}",
        rows=[row(part) for part in kept],
        level=floor if floor else None,
        level_name="noise floor" if floor else "",
        note=note + (" Intervals hold for all rows together." if together else ""),
    )


TITLES = {
    "domains": ("By domain", "Where off the task it moved."),
    "classes": ("By kind of token", "Template and end marks, format, content."),
    "confidence": (
        "By the base’s confidence",
        "The base’s largest probability at the token: small where it was undecided.",
    ),
    "positions": ("By position in the answer", "Scored tokens from the answer’s first on."),
}


def row(part: Part) -> Row:
    one = part.forward
    told = (
        f"{part.name}\n{words.with_bounds(one)}\n{words.counted(one.n, 'token')}, {words.counted(one.clusters, 'text')}"
    )
    share = f"\n{words.share(part.share)} of all the KL" if part.share is not None else ""
    return Row(name=part.name, value=one.value, low=one.low, high=one.high, tip=told + share)


def tails(audit: Audit) -> Forest | None:
    """The quantiles of the KL per token on a log axis, one colour a set of texts."""
    sets = [
        (of.name, words.way(of, "forward" if of.forward else "reverse"), tail)
        for of in audit.distributions
        if (tail := of.forward or of.reverse) is not None and tail.max > 0
    ]
    rows = [
        replace(quantile(tail, label, f"{name}, {direction}"), name="" if n else label, tone=f"c{n + 1}")
        for label in QUANTILES
        for n, (name, direction, tail) in enumerate(sets)
    ]
    rows = [one for one in rows if one.value > 0]
    if not rows:
        return None
    return Forest(
        title="The tail",
        unit="nats/token, log scale",
        rows=rows,
        zero=False,
        log=True,
        legend=[(f"c{n + 1}", name) for n, (name, _, _) in enumerate(sets)],
        note="Quantiles of the KL per token: the mean hides that few tokens carry much of it.",
    )


#: As it is called → field of `Tail`.
QUANTILES = {
    "mean": "mean",
    "median": "median",
    "90 %": "q90",
    "95 %": "q95",
    "99 %": "q99",
    "99.9 %": "q999",
    "max": "max",
}


def quantile(tail: Tail, label: str, where: str) -> Row:
    if label == "max":
        return Row(name=label, value=tail.max, tip=f"{where}\nlargest {words.nats(tail.max)}\n{tail.max_at}")
    one: Interval = getattr(tail, QUANTILES[label])
    tip = f"{where}\n{label} {words.with_bounds(one)}"
    return Row(name=label, value=one.value, low=positive(one.low), high=positive(one.high), tip=tip)


def positive(value: float | None) -> float | None:
    """None for a bound that cannot stand on a log axis: the whisker is then left out, and the tip says the numbers."""
    return value if value is not None and value > 0 else None
