"""Each shape against its formula, written out here; what is remembered, against a loop over the whole past."""

import json
import math
import random
import statistics
from dataclasses import fields, replace

import pytest
from pydantic import TypeAdapter
from tests.tolerances import EXACT

from kleash.errors import UsageError
from kleash.rewards.chain import ShapeMemory, reference_samples, shaped
from kleash.rewards.shapes import (
    SHAPES,
    Centre,
    Clip,
    Format,
    Group,
    Length,
    Log,
    LogSigmoid,
    Overlong,
    Par,
    Repetition,
    Running,
    Shape,
    ShapeConfig,
    Sigmoid,
)
from kleash.rewards.shaping import Moments, Samples, sigmoid, soft_overlong

SCORES: list[float | None] = [0.5, -3.0, None, 8.0, 2.0, 2.0, -700.0, 0.0]
SAMPLES = Samples(
    completions=["a b a b a b", "one two", "x", "<b>yes</b>", "no no no no no", "", "a a a a a a", "b c d e f"],
    lengths=[6, 2, 1, 9, 5, 0, 6, 5],
    group=[0, 0, 0, 1, 1, 1, 2, 2],
    reference=[[1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [2.5, 0.0], [2.5, 0.0], [2.5, 0.0], [None, 4.0], [None, 4.0]],
)
#: seq-rep-2 and seq-rep-4 of the completions, counted by hand; None: too short to have an n-gram.
REPEATED_2 = [3 / 5, 0.0, None, 1 / 7, 3 / 4, None, 4 / 5, 0.0]
REPEATED_4 = [1 / 3, None, None, 0.0, 1 / 2, None, 2 / 3, 0.0]


def close(found: list[float | None], truth: list[float | None], rel: float = EXACT) -> bool:
    """None where None belongs, and the same numbers elsewhere."""
    return len(found) == len(truth) and all(
        a is b if a is None or b is None else math.isclose(a, b, rel_tol=rel, abs_tol=EXACT)
        for a, b in zip(found, truth, strict=True)
    )


def logistic(x: float) -> float:
    return math.exp(x) / (1 + math.exp(x)) if x < 700 else 1.0


def expected(function) -> list[float | None]:
    return [None if s is None else function(i, s) for i, s in enumerate(SCORES)]


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


CASES: dict[str, tuple[Shape, list[float | None]]] = {
    "clip": (Clip(at=2.5), [0.5, -2.5, None, 2.5, 2.0, 2.0, -2.5, 0.0]),
    "centre 1": (Centre(), [-0.5, -4.0, None, 5.5, -0.5, -0.5, None, None]),
    "centre 2": (Centre(samples=2), [0.5, -3.0, None, 6.75, 0.75, 0.75, None, None]),
    "par": (
        Par(samples=2),
        [
            None if s is None or None in ref else (logistic(s - ref[0]) + logistic(s - ref[1])) / 2
            for s, ref in zip(SCORES, SAMPLES.reference, strict=True)
        ],
    ),
    "sigmoid": (Sigmoid(scale=2.0), expected(lambda _, s: logistic(s / 2))),
    "log_sigmoid": (
        LogSigmoid(scale=2.0),
        expected(lambda _, s: math.log(logistic(s / 2)) if s > -700 else -350.0),  # log σ(−350) = −350 − 1e-152
    ),
    "log": (Log(scale=0.5), expected(lambda _, s: sign(s) * math.log(1 + 2 * abs(s)))),
    "length": (Length(weight=0.25), expected(lambda i, s: s - 0.25 * [6, 2, 1, 9, 5, 0, 6, 5][i])),
    "overlong": (
        Overlong(limit=8, cache=4, weight=2.0),
        expected(lambda i, s: s + 2 * [-0.5, 0, 0, -1, -0.25, 0, -0.5, -0.25][i]),
    ),
    "repetition": (Repetition(weight=3.0), expected(lambda i, s: s - 3 * (REPEATED_4[i] or 0))),
    "repetition 2": (Repetition(weight=3.0, n=2), expected(lambda i, s: s - 3 * (REPEATED_2[i] or 0))),
    "format": (Format(pattern="^[a-z ]+$", value=-9.0), [0.5, -3.0, None, -9.0, 2.0, -9.0, -700.0, 0.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_shape_equals_its_formula(name):
    shape, truth = CASES[name]
    given = list(SCORES)
    found = shape(given, SAMPLES, Moments())
    assert close(found, truth)
    assert given == SCORES  # pure


def test_group_equals_a_loop_over_groups():
    truth: list[float | None] = []
    for s, g in zip(SCORES, SAMPLES.group, strict=True):
        own = [x for x, h in zip(SCORES, SAMPLES.group, strict=True) if h == g and x is not None]
        truth.append(None if s is None else (s - statistics.mean(own)) / statistics.pstdev(own))
    assert close(Group()(SCORES, SAMPLES, Moments()), truth)


def test_a_group_without_spread_is_0():
    lone = replace(SAMPLES, group=[0, 1, 1, 2, 3, 3, 4, 5])
    assert Group()(SCORES, lone, Moments()) == [0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_soft_overlong_is_the_papers_three_cases():
    limit, cache = 20480, 4096  # the paper's own numbers
    for length in (0, 1, 16384, 16385, 18432, 20479, 20480, 20481, 30000):
        if length <= limit - cache:
            truth = 0.0
        elif length <= limit:
            truth = ((limit - cache) - length) / cache
        else:
            truth = -1.0
        assert soft_overlong(length, limit, cache) == truth


def test_sigmoid_of_huge_numbers():
    assert (sigmoid(1e300), sigmoid(-1e300), sigmoid(0.0)) == (1.0, 0.0, 0.5)


# ── what is remembered ──────────────────────────────────────────────────────────────────────────────────


def test_moments_equal_those_of_all_scores_together():
    chance = random.Random(0)
    scores = [1e3 + chance.gauss(0, 3) for _ in range(300)]  # far from 0: sums of squares would lose every digit
    moments = Moments()
    for first, last in ((0, 0), (0, 1), (1, 50), (50, 50), (50, 300)):
        moments = moments.joined(scores[first:last])
    assert moments.n == 300
    assert moments.mean == pytest.approx(statistics.mean(scores), rel=EXACT)
    assert moments.std == pytest.approx(statistics.pstdev(scores), rel=EXACT)


def test_running_equals_a_loop_over_the_whole_past():
    chance = random.Random(1)
    past: list[float] = []
    moments: tuple[Moments, ...] = ()
    shapes = [Clip(at=2.0), Running()]
    for _ in range(5):
        scores: list[float | None] = [None if i == 3 else chance.gauss(0.5, 2) for i in range(8)]
        past += [min(max(s, -2.0), 2.0) for s in scores if s is not None]
        found = shaped(shapes, scores, SAMPLES, moments)
        moments = found.moments
        truth = [
            None if s is None else (min(max(s, -2.0), 2.0) - statistics.mean(past)) / statistics.pstdev(past)
            for s in scores
        ]
        assert close(found.scores, truth, rel=EXACT)
        assert found.clipped == sum(s is not None and abs(s) > 2 for s in scores)


def test_running_is_0_while_all_scores_are_equal():
    assert shaped([Running()], [3.0, None, 3.0], replace(SAMPLES, completions=["", "", ""])).scores == [0.0, None, 0.0]


def test_the_memory_is_the_same_after_a_file():
    """Floats through JSON are exact, so that a resumed run goes on bit for bit."""
    moments = (Moments(), Moments(n=3, mean=1 / 3, squares=math.pi))
    memory = ShapeMemory({"mine": moments}, {7: {"mine": [0.1, None]}, 12: {"mine": [1e-300]}})
    assert ShapeMemory.of(json.loads(json.dumps(memory.plain()))) == memory


# ── chains and configs ──────────────────────────────────────────────────────────────────────────────────


def test_the_order_is_that_of_the_config():
    scores: list[float | None] = [4.0, 0.0]
    two = replace(SAMPLES, reference=[[1.0], [1.0]])
    assert shaped([Centre(), Clip(at=2.0)], scores, two).scores == [2.0, -1.0]
    assert shaped([Clip(at=2.0), Centre()], scores, two).scores == [1.0, -1.0]
    assert shaped([Centre()], scores, two).clipped is None


def test_how_many_reference_samples_are_asked_for():
    assert reference_samples([Clip(at=1.0)]) == 0
    assert reference_samples([Centre(), Par(samples=3)]) == 3


def test_a_bare_name_is_a_kind_and_all_kinds_are_there():
    read = TypeAdapter(list[ShapeConfig]).validate_python
    assert read(["group", {"kind": "clip", "at": 5}]) == [Group(), Clip(at=5.0)]
    assert all({f.name: f.default for f in fields(cls)}["kind"] == kind for kind, cls in SHAPES.items())


#: The fields of each kind, turned; clip.at, length.weight, … have no default and are turned between two values.
TURNS = [
    (Clip(at=1.0), Clip(at=2.0)),
    (Centre(), Centre(samples=2)),
    (Par(), Par(samples=2)),
    (Sigmoid(), Sigmoid(scale=2.0)),
    (LogSigmoid(), LogSigmoid(scale=2.0)),
    (Log(), Log(scale=2.0)),
    (Length(weight=1.0), Length(weight=2.0)),
    (Overlong(limit=8, cache=4), Overlong(limit=7, cache=4)),
    (Overlong(limit=8, cache=4), Overlong(limit=8, cache=3)),
    (Overlong(limit=8, cache=4), Overlong(limit=8, cache=4, weight=2.0)),
    (Repetition(weight=1.0), Repetition(weight=2.0)),
    (Repetition(weight=1.0), Repetition(weight=1.0, n=2)),
    (Format(pattern="a"), Format(pattern="b")),
    (Format(pattern="a"), Format(pattern="a", value=1.0)),
]


@pytest.mark.parametrize(("one", "other"), TURNS, ids=lambda shape: str(shape))
def test_every_field_has_effect(one, other):
    assert shaped([one], SCORES, SAMPLES).scores != shaped([other], SCORES, SAMPLES).scores


def test_the_turns_name_every_field():
    for cls in SHAPES.values():
        turned = {
            f.name for a, b in TURNS if type(a) is cls for f in fields(cls) if getattr(a, f.name) != getattr(b, f.name)
        }
        assert turned == {f.name for f in fields(cls)} - {"kind"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Clip(at=0.0), "clip: at = 0 must be above 0"),
        (lambda: Sigmoid(scale=-1.0), "sigmoid: scale = -1"),
        (lambda: Par(samples=0), "par: samples = 0"),
        (lambda: Overlong(limit=4, cache=5), "cache = 5 must be from 1 to limit = 4"),
        (lambda: Format(pattern="("), r"the pattern '\(' is not valid"),
    ],
)
def test_what_cannot_be_meant_is_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()
