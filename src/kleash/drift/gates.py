"""Gates of an audit, for CI: each compares the bound that is against it, so that passing means something.

`off=0.05` names a set of texts and, where it is not the usual one, a direction: `off.reverse=0.1`. Sets are off, task,
own (the tuned model's samples, reverse) and base (the base's samples, forward).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from kleash.drift import statistics
from kleash.drift.predicting import texts_lost
from kleash.drift.records import Audit, Distribution, Gate, Interval, Tail
from kleash.drift.verdict import bounds, signed
from kleash.errors import UsageError

#: How a gate names a set of texts → how an audit does.
SETS = {"off": "off task", "task": "on task", "own": "its own words", "base": "the base's words"}
DIRECTIONS = ("forward", "reverse")


def parse(option: str, given: Sequence[str]) -> dict[str, float]:
    """["off=0.05"] → {"off": 0.05}.

    Raises:
        UsageError: it is not written so, or names a set or direction that there is not.
    """
    found = {}
    for one in given:
        name, equals, number = one.partition("=")
        try:
            limit = float(number)
        except ValueError:
            limit = float("nan")
        if not equals or not 0 <= limit < float("inf"):
            raise UsageError(f"{option} {one}: it is written NAME=NUMBER, as {option} off=0.05, the number 0 or more")
        _place(name, option)
        found[name] = limit
    return found


def judge(
    audit: Audit,
    *,
    max_kl: Mapping[str, float] = {},
    max_p99: Mapping[str, float] = {},
    min_top1: Mapping[str, float] = {},
    no_regression: bool = False,
    against: Audit | None = None,
) -> list[Gate]:
    """Every gate that is asked for; passed is None where what it compares was not measured.

    Args:
        max_kl: the upper bound of the mean KL must not exceed it. max_p99: that of its 99 % quantile.
        min_top1: the lower bound of the share of tokens with the same likeliest token must not be below it.
        no_regression: no score is LOST, nor are the off-task texts.
        against: an earlier audit of the same texts; the drift must not be surely larger, and nothing else be LOST.

    Raises:
        UsageError: a set or direction that there is not; an earlier audit that is not of the same texts and base.
    """
    found = [_most(audit, name, limit, "KL") for name, limit in max_kl.items()]
    found += [_most(audit, name, limit, "99 % KL") for name, limit in max_p99.items()]
    found += [_least_agreement(audit, name, limit) for name, limit in min_top1.items()]
    if no_regression:
        found.append(_regression(audit))
    return found + ([] if against is None else _against(audit, against))


def _place(name: str, option: str) -> tuple[str, str]:
    """ "off.reverse" → ("off task", "reverse")."""
    short, _, direction = name.partition(".")
    direction = direction or ("reverse" if short == "own" else "forward")
    if short not in SETS or direction not in DIRECTIONS:
        raise UsageError(
            f"{option} {name}: sets of texts are {', '.join(SETS)}, with .forward or .reverse, as off.reverse"
        )
    return SETS[short], direction


def _set(audit: Audit, name: str) -> Distribution | None:
    return next((one for one in audit.distributions if one.name == name), None)


def _most(audit: Audit, name: str, limit: float, what: str) -> Gate:
    texts, direction = _place(name, "max-kl" if what == "KL" else "max-p99")
    of = _set(audit, texts)
    tail: Tail | None = None if of is None else getattr(of, direction)
    way = "base‖tuned" if direction == "forward" else "tuned‖base"
    said = f"{texts}: {what} ({way})"
    if of is None or tail is None:
        return Gate(text=f"{said} was not measured, limit {limit:g}", passed=None)
    interval = tail.mean if what == "KL" else tail.q99
    if of.kind == "lower bound":  # which can only ever fail it
        low = interval.value if interval.low is None else interval.low
        return Gate(
            text=f"{said} is at least {low:.3g}, limit {limit:g} nats/token", passed=False if low > limit else None
        )
    if interval.high is None:
        return Gate(text=f"{said} {interval.value:.3g} has no upper bound ({interval.warning})", passed=None)
    passed = interval.high <= limit
    return Gate(
        text=f"{said} upper bound {interval.high:.3g} {'≤' if passed else '>'} {limit:g} nats/token", passed=passed
    )


def _least_agreement(audit: Audit, name: str, limit: float) -> Gate:
    texts, _ = _place(name, "min-top1")
    of = _set(audit, texts)
    if of is None or of.same_top1 is None:
        return Gate(text=f"{texts}: same top-1 was not measured, limit {limit:g}", passed=None)
    share = of.same_top1
    if share.low is None:
        return Gate(text=f"{texts}: same top-1 {share.value:.3g} has no lower bound ({share.warning})", passed=None)
    passed = share.low >= limit
    text = f"{texts}: same top-1 lower bound {share.low:.3g} {'≥' if passed else '<'} {limit:g}"
    return Gate(text=text, passed=passed)


def _regression(audit: Audit) -> Gate:
    lost = [f"{one.name} {signed(one.change)}" for one in audit.scores if one.outcome == "LOST"]
    off = _set(audit, SETS["off"])
    if off is not None and off.prediction is not None and texts_lost(off.prediction):
        lost.append(f"the off-task texts {signed(off.prediction.change)}")
    if not audit.scores and not lost:
        return Gate(text="no regression: no task was scored", passed=None)
    if lost:
        return Gate(text=f"regression: {', '.join(lost)}", passed=False)
    return Gate(text=f"no regression in {len(audit.scores)} task{'s' if len(audit.scores) > 1 else ''}", passed=True)


def _against(audit: Audit, last: Audit) -> list[Gate]:
    _same_question(audit, last)
    found = []
    for of in audit.distributions:
        before = _set(last, of.name)
        if before is not None and of.name in (SETS["off"], SETS["task"]):
            found.append(_not_further(of, before))
    lost = {one.name for one in audit.scores if one.outcome == "LOST"}
    new = sorted(lost - {one.name for one in last.scores if one.outcome == "LOST"})
    text = f"lost, and not in the last audit: {', '.join(new)}" if new else "no loss that the last audit had not"
    found.append(Gate(text=text, passed=not new if audit.scores else None))
    return found


def _same_question(audit: Audit, last: Audit) -> None:
    """Raises UsageError unless both audits are of one base on the same tokens."""
    told = {
        "the base": (audit.base.fingerprint.get("weights"), last.base.fingerprint.get("weights")),
        "the built-in set": ((audit.set_id, audit.set_hash), (last.set_id, last.set_hash)),
        "the template": (audit.parity.used_template, last.parity.used_template),
    }
    for of in audit.distributions:
        before = _set(last, of.name)
        if before is not None and of.name in (SETS["off"], SETS["task"]):
            told[f"{of.name}: documents, tokens, kind of KL"] = (_shape(of), _shape(before))
            told[f"{of.name}: the documents' tokens"] = (_sizes(of), _sizes(before))
    differ = [f"{what} ({_short(then)} there, {_short(now)} here)" for what, (now, then) in told.items() if now != then]
    if differ:
        raise UsageError(f"--against: the two audits do not compare, for these differ: {'; '.join(differ)}")


def _shape(of: Distribution) -> tuple[int, int | None, str]:
    return of.documents, of.tokens, of.kind


def _sizes(of: Distribution) -> str:
    """A hash of how many tokens each document has."""
    sizes = sorted((document, n) for document, (n, _) in of.by_document.items())
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_short(one) for one in value)
    text = str(value)
    return text[:12] + "…" if len(text) > 40 else text


def _not_further(of: Distribution, before: Distribution) -> Gate:
    """The change of the drift, paired by document: the same texts vary the same way in both audits."""
    said = f"{of.name}: KL (base‖tuned), less the last audit's"
    if of.kind != "exact":
        return Gate(text=f"{said}: not known, for both are no more than a {of.kind}", passed=None)
    if of.forward is None or before.forward is None or not of.by_document:
        return Gate(text=f"{said}: not measured", passed=None)
    change = _change(of, before)
    if change.low is None or change.high is None:
        return Gate(text=f"{said}: {change.value:+.3g} has no interval ({change.warning})", passed=None)
    passed = change.low <= 0
    text = f"{said}: {bounds(change)} nats/token, {'not surely larger' if passed else 'larger'}"
    return Gate(text=text, passed=passed)


def _change(of: Distribution, before: Distribution) -> Interval:
    names = list(of.by_document)
    sizes = np.array([of.by_document[name][0] for name in names], np.float64)
    gaps = np.array([of.by_document[name][1] - before.by_document[name][1] for name in names], np.float64)
    return statistics.of_totals(gaps, sizes)
