"""Several audits of one base: who is nearer, and whether the texts that they share can tell."""

from collections.abc import Mapping, Sequence

import numpy as np

from kleash.drift import statistics
from kleash.drift.records import Audit, Distribution, Interval, Score
from kleash.drift.standings import Ranking, Standing

OFF = "off task"


def ranked(audits: Sequence[Audit], *, command: str, curve: bool = False, pages: Mapping[str, str] = {}) -> Ranking:
    """The nearest first, or by step for a curve. pages: tuned model's name → its own page.

    A model without an off-task KL comes last.
    """
    order = sorted(audits, key=lambda one: (one.tuned.step or 0) if curve else kl(one))
    rows = []
    for place, one in enumerate(order):
        before = order[place - 1] if place else None
        off = distribution(one)
        rows.append(
            Standing(
                name=one.tuned.name,
                step=one.tuned.step,
                forward=off.forward.mean if off and off.forward else None,
                kind=off.kind if off else "exact",
                gap=None if before is None else gap(before, one),
                score=task(one),
                verdict=one.judgement.verdict,
                page=pages.get(one.tuned.name),
            )
        )
    partial = next((one.partial for one in audits if one.partial), None)
    names = {score.name for one in audits if (score := task(one))}
    return Ranking(
        kind="curve" if curve else "ranks",
        base=audits[0].base.name,
        rows=rows,
        task=names.pop() if len(names) == 1 else None,
        command=command,
        made=audits[-1].made,
        partial=partial,
    )


def distribution(audit: Audit) -> Distribution | None:
    return next((each for each in audit.distributions if each.name == OFF), None)


def kl(audit: Audit) -> float:
    off = distribution(audit)
    return off.forward.mean.value if off and off.forward else float("inf")


def task(audit: Audit) -> Score | None:
    return next((score for score in audit.scores if score.role == "task"), None)


def gap(before: Audit, after: Audit) -> Interval | None:
    """The off-task KL of `after` less that of `before`, paired by text; None where they have read no texts in common.

    None too where one is a lower bound, for the difference of two bounds bounds nothing. Texts count with their tokens.
    The interval is clustered by text, as every mean's is.
    """
    first, second = distribution(before), distribution(after)
    if first is None or second is None or not first.kind == second.kind == "exact":
        return None
    shared = [name for name, (n, _) in first.by_document.items() if second.by_document.get(name, (0, 0.0))[0] == n]
    if not shared:
        return None
    sizes = np.array([first.by_document[name][0] for name in shared], np.float64)
    gaps = np.array([second.by_document[name][1] - first.by_document[name][1] for name in shared], np.float64)
    return statistics.of_totals(gaps, sizes)
