"""Each verdict from planted intervals, their order of precedence, and no flicker along base + a·(tuned − base)."""

import math
from dataclasses import replace
from itertools import groupby
from typing import get_args

import numpy as np
import pytest
from tests.drift.tables import documents, spread, table

from kleash.drift.distribution import distribution
from kleash.drift.records import Distribution, Floor, Interval, Outcome, Prediction, Score, Verdict
from kleash.drift.thresholds import FLOOR_TIMES, LARGE, NOTICEABLE, TEXTS_LOST
from kleash.drift.verdict import forgetting, judge

OWNERS = documents(60)
#: A real distribution, whose forward mean the tests replace; how its texts are predicted, they add.
PLAIN = replace(distribution(table(spread(OWNERS), OWNERS), name="off task", source="builtin-1"), prediction=None)
FLOOR = Floor(value=0.001, by={"repeated": 0.001})


def interval(low: float, high: float, value: float | None = None) -> Interval:
    return Interval(value=(low + high) / 2 if value is None else value, low=low, high=high, n=100, clusters=100)


def off(low: float, high: float, **changes: object) -> Distribution:
    assert PLAIN.forward is not None
    return replace(PLAIN, forward=replace(PLAIN.forward, mean=interval(low, high)), **changes)


def score(name: str, role: str, outcome: Outcome, low: float, high: float, family: str | None = None) -> Score:
    value = (low + high) / 2
    fields = {"source": "x", "base": 0.4, "tuned": 0.4 + value, "change": interval(low, high), "could_lose": True}
    return Score(name=name, role=role, outcome=outcome, family=family, **fields)  # type: ignore[arg-type]


GAIN = score("polite", "task", "gained", 0.3, 0.4)
NO_GAIN = score("polite", "task", "no gain", -0.05, 0.05)
UNCLEAR = score("polite", "task", "unclear", -0.1, 0.3)
#: Of tasks of which none is named as what it was trained for.
ANY_UNCLEAR = score("json", "other", "unclear", -0.1, 0.3)
ANY_NO_GAIN = score("sums", "other", "no gain", -0.05, 0.05)
SIBLING = score("formal", "sibling", "no gain", -0.04, 0.06)
SIBLING_TOO = score("formal", "sibling", "gained", 0.1, 0.2)
SIBLING_UNCLEAR = score("formal", "sibling", "unclear", -0.1, 0.3)
LOSS = score("arithmetic", "other", "LOST", -0.19, -0.07)
GREAT_LOSS = score("arithmetic", "other", "LOST", -0.6, -0.4)
SMALL, MIDDLE, STRADDLES, BIG = (0.008, 0.012), (0.025, 0.04), (0.04, 0.06), (0.08, 0.11)


@pytest.mark.parametrize(
    ("drift", "scores", "verdict"),
    [
        ((0.0005, 0.0015), [], "unchanged"),
        ((0.0005, 0.0015), [GAIN, LOSS], "unchanged"),
        (SMALL, [NO_GAIN, SIBLING], "unchanged"),
        (SMALL, [], "insufficient evidence"),
        (SMALL, [UNCLEAR], "insufficient evidence"),
        ((0.01, 0.3), [GAIN], "insufficient evidence"),
        (SMALL, [GAIN], "improved, still itself"),
        (MIDDLE, [GAIN], "improved, still itself"),
        (STRADDLES, [GAIN], "improved at a price"),
        (SMALL, [GAIN, LOSS], "improved at a price"),
        (BIG, [GAIN], "improved at a price"),
        (BIG, [GAIN, SIBLING], "party trick"),
        (BIG, [GAIN, SIBLING, GREAT_LOSS], "party trick"),
        (STRADDLES, [GAIN, SIBLING], "improved at a price"),
        (BIG, [GAIN, SIBLING_TOO], "improved at a price"),
        (BIG, [GAIN, SIBLING_UNCLEAR], "improved at a price"),
        (BIG, [GAIN, SIBLING, SIBLING_TOO], "improved at a price"),
        (MIDDLE, [NO_GAIN], "drifted for nothing"),
        (BIG, [NO_GAIN, SIBLING], "drifted for nothing"),
        (SMALL, [ANY_UNCLEAR, ANY_NO_GAIN], "unchanged"),
        (MIDDLE, [ANY_UNCLEAR, ANY_NO_GAIN], "insufficient evidence"),
        (MIDDLE, [ANY_NO_GAIN], "drifted for nothing"),
        (BIG, [ANY_UNCLEAR, LOSS], "damaged"),
        (BIG, [NO_GAIN, LOSS], "damaged"),
        (SMALL, [NO_GAIN, LOSS], "damaged"),
        (BIG, [UNCLEAR, LOSS], "damaged"),
        (BIG, [GAIN, GREAT_LOSS], "damaged"),
    ],
)
def test_each_verdict(drift: tuple[float, float], scores: list[Score], verdict: Verdict) -> None:
    found = judge([off(*drift)], scores, FLOOR)
    assert found.verdict == verdict
    assert found.losses == [one for s in scores if s.outcome == "LOST" for one in found.losses if s.name in one]
    assert len(found.losses) == sum(s.outcome == "LOST" for s in scores), "losses are always listed"
    assert found.because


def test_every_verdict_can_be_had() -> None:
    [mark] = test_each_verdict.pytestmark  # type: ignore[attr-defined]
    assert {row[2] for row in mark.args[1]} == set(get_args(Verdict))


def predicted(low: float, high: float, base: float = 0.75) -> Prediction:
    return Prediction(base=base, tuned=base + (low + high) / 2, change=interval(low, high), letters=12.0)


LOST_TEXTS, FEWER, FEW, STRADDLING = (-0.36, -0.27), (-0.099, -0.03), (-0.004, -0.001), (-0.15, -0.09)


@pytest.mark.parametrize(
    ("scores", "texts", "verdict"),
    [
        ([GAIN, SIBLING_TOO], predicted(*LOST_TEXTS), "damaged"),
        ([GAIN], predicted(*FEWER), "improved at a price"),
        ([GAIN], predicted(*FEW), "improved at a price"),
        ([GAIN], predicted(*STRADDLING), "improved at a price"),
        ([GAIN], predicted(*LOST_TEXTS, base=0.05), "improved at a price"),
        ([GAIN, SIBLING], predicted(*LOST_TEXTS), "party trick"),
        ([], predicted(*LOST_TEXTS), "damaged"),
        ([UNCLEAR], predicted(*LOST_TEXTS), "damaged"),
        ([NO_GAIN], predicted(*LOST_TEXTS), "damaged"),
        ([NO_GAIN], predicted(*FEW), "drifted for nothing"),
    ],
)
def test_who_loses_the_texts_themselves_is_damaged(scores: list[Score], texts: Prediction, verdict: Verdict) -> None:
    """No gain makes up for that, and no task is needed to see it; a base that hardly knew them is no witness."""
    found = judge([off(*BIG, prediction=texts)], scores, FLOOR)
    assert found.verdict == verdict
    [condition] = [one for one in found.conditions if "the off-task texts are still predicted" in one.text]
    gone = texts.change.high is not None and texts.change.high <= -TEXTS_LOST
    assert condition.met is (None if texts.base < TEXTS_LOST else not gone)
    assert any("the off-task texts" in one for one in found.losses) == (condition.met is False), "losses are listed"


def test_a_drift_within_the_floor_loses_no_texts() -> None:
    assert judge([off(0.0005, 0.0015, prediction=predicted(*LOST_TEXTS))], [], FLOOR).verdict == "unchanged"


def test_a_party_trick_is_not_said_without_siblings() -> None:
    found = judge([off(*BIG)], [GAIN], FLOOR)
    assert found.verdict != "party trick"
    [condition] = [one for one in found.conditions if "sibling" in one.text]
    assert (condition.text, condition.met) == ("no sibling of polite gained: none was scored", None)


def test_families_are_siblings_where_no_task_is_named() -> None:
    gained = score("add", "other", "gained", 0.3, 0.5, "arithmetic")
    alone = [gained, score("words", "other", "no gain", -0.05, 0.05, "arithmetic")]
    stranger = score("json", "other", "no gain", -0.05, 0.05, "format")
    assert judge([off(*BIG)], [*alone, stranger], FLOOR).verdict == "party trick"
    assert judge([off(*BIG)], [gained, stranger], FLOOR).verdict == "improved at a price"
    both = [gained, score("words", "other", "gained", 0.2, 0.3, "arithmetic")]
    assert judge([off(*BIG)], both, FLOOR).verdict == "improved at a price"


def test_a_gain_elsewhere_is_not_what_it_was_trained_for() -> None:
    other = score("json", "other", "gained", 0.2, 0.3)
    assert judge([off(*BIG)], [NO_GAIN, other], FLOOR).verdict == "drifted for nothing"


def test_conditions_are_quoted_with_their_numbers() -> None:
    found = judge([off(0.081, 0.109)], [GAIN, SIBLING, LOSS], FLOOR)
    assert [(one.text, one.met) for one in found.conditions] == [
        ("off-task drift known: KL(base‖tuned) 0.095 [0.081, 0.109] nats/token", True),
        ("drift above the noise floor: upper bound 0.109, 2 × floor is 0.002", True),
        ("noticeable: lower bound 0.081, at least 0.02", True),
        ("small: upper bound 0.109, at most 0.05", False),
        ("large: lower bound 0.081, at least 0.05", True),
        ("the task gained: polite +0.35 [+0.30, +0.40]", True),
        ("no sibling of polite gained: formal +0.01 [-0.04, +0.06] no gain", True),
        ("nothing surely lost: arithmetic -0.13 [-0.19, -0.07]", False),
        ("a loss could be seen: 1 of 1 other tasks could show a loss", True),
    ]
    assert found.losses == ["arithmetic -0.13 [-0.19, -0.07]"]
    assert found.because == "large drift off the task, gain on polite, none on its siblings"


def test_a_loss_that_could_not_be_seen_is_said() -> None:
    """Of a base that can do next to nothing, "nothing lost" says nothing: how many tasks could tell is beside it."""
    floored = replace(ANY_UNCLEAR, name="json", could_lose=False)
    gained = replace(SIBLING_TOO, name="copy", role="other", could_lose=False)  # is none that it may have lost
    found = judge([off(*BIG)], [GAIN, floored, ANY_NO_GAIN, gained], FLOOR)
    assert found.verdict == "improved at a price"
    assert found.because.endswith("is large; 1 of 2 other tasks could show a loss")
    assert (found.conditions[-2].text, found.conditions[-2].met) == ("nothing surely lost", True)
    assert found.conditions[-1].met is False and "1 of 2 other tasks" in found.conditions[-1].text
    alone = judge([off(*STRADDLES)], [GAIN, SIBLING], FLOOR)
    assert alone.because.endswith("may be large; no other task was scored") and alone.conditions[-1].met is None
    older = judge([off(*BIG)], [GAIN, replace(floored, could_lose=None)], FLOOR)
    assert "could be seen" not in older.because + older.conditions[-1].text, "a report of an earlier kleash"


def test_without_a_drift_there_is_no_verdict() -> None:
    few = off(0.08, 0.11)
    assert few.forward is not None
    without = Interval(value=0.1, n=100, clusters=20, warning="too few documents")
    cases = {
        "not measured": [replace(few, name="on task")],
        "too few documents": [replace(few, forward=replace(few.forward, mean=without))],
        "bits per byte": [replace(few, forward=None, bits_per_byte=(1.0, 1.1))],
        "forward KL was not measured": [replace(few, forward=None)],
        "13 of 1,200 off-task tokens have NaN": [replace(few, non_finite=13)],
    }
    for why, distributions in cases.items():
        found = judge(distributions, [GAIN, SIBLING, LOSS], FLOOR)
        assert found.verdict == "insufficient evidence" and why in found.because, why
        assert found.losses == ["arithmetic -0.13 [-0.19, -0.07]"] and found.conditions[0].met is False
    assert judge([replace(few, non_finite=12)], [GAIN], FLOOR).verdict != "insufficient evidence"


def test_a_lower_bound_proves_no_small_drift() -> None:
    assert judge([off(*BIG, kind="lower bound")], [GAIN, SIBLING], FLOOR).verdict == "party trick"
    assert judge([off(*SMALL, kind="lower bound")], [GAIN], FLOOR).verdict == "insufficient evidence"
    assert judge([off(*MIDDLE, kind="lower bound")], [GAIN], FLOOR).verdict == "improved at a price"
    tiny = judge([off(0.0001, 0.0002, kind="lower bound")], [NO_GAIN], FLOOR)
    assert tiny.verdict == "insufficient evidence", "a bound below the floor is not a drift below it"
    assert "at least" in tiny.conditions[0].text and "upper bound not known" in tiny.conditions[1].text


def test_without_a_floor_nothing_is_below_it() -> None:
    found = judge([off(0.0001, 0.0002)], [], None)
    assert found.verdict == "insufficient evidence"
    assert [one.met for one in found.conditions if "floor" in one.text] == [None]


def test_at_the_floor() -> None:
    """bf16 against fp32 measures its own floor: no measurable drift."""
    floor = Floor(value=0.0014, by={"dtype": 0.0014})
    assert judge([off(0.00125, 0.0016)], [], floor).verdict == "unchanged"
    assert judge([off(0.00125, FLOOR_TIMES * 0.0014 + 1e-6)], [], floor).verdict != "unchanged"


#: What might be true of a fine-tune at a = 1: its drift, its gain, its sibling's gain, its loss.
TUNES = {
    "a little": (0.01, 0.4, 0.2, 0.0),
    "hacked": (0.6, 0.5, 0.0, 0.3),
    "narrow": (0.2, 0.5, 0.0, 0.0),
    "broad": (0.2, 0.5, 0.4, 0.0),
    "for nothing": (0.3, 0.0, 0.0, 0.0),
    "ruined": (2.0, 0.05, 0.0, 0.9),
    "wrecked": (3.9, 0.5, 0.4, 0.0),
    "rounded": (0.09, 0.0, 0.0, 0.05),
}


def along(a: float, tune: tuple[float, float, float, float], half: float = 0.08, named: bool = True) -> Verdict:
    """Drift ∝ a², gains that saturate, a loss ∝ a²; intervals as wide as an audit's are, outcomes by their rule.

    The texts get less likely by about the drift, over 12 nats a token for their letters.
    """
    kl, gain, sibling, loss = tune
    mean = kl * a * a
    scores = []
    for name, role, change in (
        ("task", "task", gain * math.tanh(2 * a)),
        ("sibling", "sibling", sibling * math.tanh(2 * a)),
        ("other", "other", -loss * min(a * a, 1)),
    ):
        low, high = change - half, change + half
        outcome = "gained" if low > 0 else "LOST" if high < 0 else "no gain" if high < 0.1 else "unclear"
        scores.append(score(name, role if named else "other", outcome, low, high))
    texts = predicted(-1.16 * mean / 12, -0.87 * mean / 12)
    return judge([off(0.87 * mean, 1.16 * mean, prediction=texts)], scores, FLOOR).verdict


@pytest.mark.parametrize("name", TUNES)
def test_verdicts_do_not_flicker(name: str) -> None:
    """On 301 steps from base to 1.5 times the tuned model: no verdict comes back after another one."""
    path = [along(float(a), TUNES[name]) for a in np.linspace(0, 1.5, 301)]
    runs = [verdict for verdict, _ in groupby(path)]
    assert runs[0] == "unchanged" and len(runs) == len(set(runs)), runs
    last: dict[str, Verdict] = {
        "a little": "improved, still itself",
        "hacked": "party trick",
        "narrow": "party trick",
        "broad": "improved at a price",
        "for nothing": "drifted for nothing",
        "ruined": "damaged",
        "wrecked": "damaged",
        "rounded": "drifted for nothing",
    }
    assert runs[-1] == last[name], runs


@pytest.mark.parametrize("half", [0.08, 0.12])
@pytest.mark.parametrize("name", TUNES)
def test_nor_where_no_task_is_named(name: str, half: float) -> None:
    """half: the intervals' half width; with the wider one a task that did not change is unclear."""
    path = [along(float(a), TUNES[name], half, named=False) for a in np.linspace(0, 1.5, 301)]
    runs = [verdict for verdict, _ in groupby(path)]
    assert runs[0] == "unchanged" and len(runs) == len(set(runs)), runs


def test_thresholds_are_in_order() -> None:
    assert FLOOR_TIMES * FLOOR.value < NOTICEABLE < LARGE


def test_forgetting_is_predicted_not_measured() -> None:
    on = replace(off(0.188, 0.239), name="on task")
    said = forgetting([off(*BIG), on], FLOOR)
    assert said is not None
    for part in ("0.213 [0.188, 0.239] nats per token", "214 times the floor", "2509.04259", "A prediction"):
        assert part in said, said
    assert "at least 0.213" in (forgetting([replace(on, kind="lower bound")], None) or "")
    assert forgetting([off(*BIG)], FLOOR) is None
    assert forgetting([replace(on, forward=None)], FLOOR) is None
