"""Several audits of one base: their order, and what the texts that they share can tell of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.report.audits import audit, distribution, score, side

from kleash.drift import records as r
from kleash.drift import statistics
from kleash.drift.ranks import gap, ranked


def one(name: str, kl: float, *, step: int | None = None, by: dict[str, tuple[int, float]] | None = None) -> r.Audit:
    off = replace(distribution("off task", kl, kl), by_document=by or {})
    return audit(
        tuned=replace(side(name), step=step), distributions=[off], scores=[score("polite", "task", 0.4, 0.6, "gained")]
    )


def sums(seed: int, factor: float = 1.0) -> dict[str, tuple[int, float]]:
    """60 texts that are far apart in KL, the same for every model of one seed."""
    random = np.random.default_rng(seed)
    return {f"t{n}": (10 + n % 7, float(random.lognormal(0, 1.5)) * factor) for n in range(60)}


def test_the_nearest_comes_first_and_a_curve_goes_by_step() -> None:
    audits = [one("far", 0.3, step=20), one("near", 0.01, step=60), one("middle", 0.1, step=40)]
    found = ranked(audits, command="again")
    assert [row.name for row in found.rows] == ["near", "middle", "far"]
    assert [row.step for row in ranked(audits, command="", curve=True).rows] == [20, 40, 60]
    assert found.task == "polite" and found.rows[0].score is not None and found.kind == "ranks"


def test_a_gap_is_paired_by_text_and_so_far_narrower_than_both_intervals() -> None:
    before, after = one("a", 1.0, by=sums(1)), one("b", 1.1, by=sums(1, 1.1))
    found = gap(before, after)
    assert found is not None and found.low is not None and found.high is not None
    tokens, kl = zip(*sums(1).values(), strict=True)
    assert found.value == pytest.approx(0.1 * sum(kl) / sum(tokens))
    assert found.low > 0
    alone = statistics.mean(np.repeat(np.array(kl) / tokens, tokens), np.repeat(np.arange(60), tokens))
    assert alone.low is not None and alone.high is not None
    assert found.high - found.low < 0.2 * (alone.high - alone.low)


def test_other_texts_cannot_be_paired() -> None:
    other: dict[str, Any] = {f"u{n}": pair for n, pair in enumerate(sums(1).values())}
    assert gap(one("a", 1.0, by=sums(1)), one("b", 1.0, by=other)) is None
    longer = {name: (n + 1, kl) for name, (n, kl) in sums(1).items()}
    assert gap(one("a", 1.0, by=sums(1)), one("b", 1.0, by=longer)) is None
    assert gap(one("a", 1.0, by=sums(1)), audit(distributions=[])) is None


def test_the_difference_of_two_lower_bounds_is_none() -> None:
    exact = [one(name, 1.0, by=sums(1)) for name in "ab"]
    bounds = [replace(a, distributions=[replace(a.distributions[0], kind="lower bound")]) for a in exact]
    assert gap(*exact) is not None and gap(*bounds) is None and gap(exact[0], bounds[1]) is None
    assert [row.kind for row in ranked(bounds, command="").rows] == ["lower bound"] * 2


def test_a_model_without_a_kl_comes_last_and_a_partial_audit_is_said() -> None:
    none = audit(tuned=side("none"), distributions=[], partial="Ctrl-C")
    found = ranked([none, one("near", 0.01)], command="")
    assert [row.name for row in found.rows] == ["near", "none"]
    assert found.rows[1].forward is None and found.partial == "Ctrl-C"
