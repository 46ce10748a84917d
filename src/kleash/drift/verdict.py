"""Was it worth it: the interval of the drift × the paired intervals of the scores, as one verdict with its conditions.

Who claims something bears the burden: "large" needs the lower bound above its threshold, "still itself" the upper bound
below it, "gained" and "LOST" an interval without 0. So a model that moves further changes its verdict at one place for
each threshold, and does not flicker around it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kleash.drift.predicting import texts_lost, written
from kleash.drift.records import Condition, Distribution, Floor, Interval, Judgement, Prediction, Score, Verdict
from kleash.drift.thresholds import FLOOR_TIMES, LARGE, NON_FINITE, NOTICEABLE, TEXTS_LOST

OFF, ON = "off task", "on task"


@dataclass(frozen=True, slots=True)
class _Drift:
    """Bounds of the off-task forward KL; high is infinite for a lower bound. texts: how well they are predicted."""

    low: float
    high: float
    floor: float | None
    said: str
    texts: Prediction | None

    @property
    def wrecked(self) -> bool:
        """The texts themselves are lost, whatever was gained."""
        return texts_lost(self.texts) is True

    @property
    def measurable(self) -> bool:
        return self.floor is None or self.high > FLOOR_TIMES * self.floor

    @property
    def wide(self) -> bool:
        """It may be small and it may be large."""
        return self.low < NOTICEABLE and self.high > LARGE


@dataclass(frozen=True, slots=True)
class _Scores:
    """aims: what was trained for; without it, all. mates: siblings, for each aim that gained.

    others: tasks that it was not trained for and that did not gain: what it may have lost.
    """

    aims: list[Score]
    gained: list[Score]
    lost: list[Score]
    mates: list[list[Score]]
    others: list[Score]
    named: bool

    @property
    def narrow(self) -> bool:
        """Every gain stands alone among its siblings, for sure; not without siblings."""
        return bool(self.gained) and all(_alone(mates) for mates in self.mates)

    @property
    def unclear(self) -> bool:
        return not self.gained and any(aim.outcome == "unclear" for aim in self.aims)

    @property
    def losable(self) -> str | None:
        """In how many of the others a loss could be seen, in words; None where that is not known."""
        if not self.others or any(score.could_lose is None for score in self.others):
            return None if self.others else "no other task was scored"
        seen = sum(bool(score.could_lose) for score in self.others)
        return f"{seen} of {len(self.others)} other tasks could show a loss"

    @property
    def outweighed(self) -> bool:
        """A loss is surely larger than the largest sure gain."""
        if not self.gained or not self.lost:
            return bool(self.lost)
        return max(-_high(score) for score in self.lost) >= max(_low(score) for score in self.gained)


def judge(distributions: Sequence[Distribution], scores: Sequence[Score], floor: Floor | None) -> Judgement:
    """The verdict on all that was measured.

    Args:
        distributions: one of them "off task"; without it there is insufficient evidence.
        scores: with their outcomes. floor: None: not measured; then no drift is below it.

    Proved by: tests/drift/test_verdict.py::test_verdicts_do_not_flicker,
    tests/drift/test_verdict.py::test_each_verdict
    """
    off = next((one for one in distributions if one.name == OFF), None)
    drift, why_not = _drift(off, floor)
    judged = _sorted(scores)
    conditions = _conditions(drift, judged, why_not)
    losses = [f"{score.name} {signed(score.change)}" for score in judged.lost]
    if drift is not None and drift.wrecked and drift.texts is not None:
        losses.append(f"the off-task texts {signed(drift.texts.change)}")
    verdict, because = _verdict(drift, judged, why_not)
    return Judgement(verdict=verdict, because=because, conditions=conditions, losses=losses)


def forgetting(distributions: Sequence[Distribution], floor: Floor | None) -> str | None:
    """What RL's Razor predicts of forgetting, as a sentence; None where the task's inputs were not measured.

    Source: Shenfeld, Pari, Agrawal, "RL's Razor", arXiv 2509.04259: the forward KL on the new task's inputs predicts
    forgetting, about as its square.
    """
    on = next((one for one in distributions if one.name == ON and one.forward is not None), None)
    if on is None or on.forward is None:
        return None
    least = "at least " if on.kind == "lower bound" else ""
    ratio = 0.0 if floor is None or not floor.value else on.forward.mean.value / floor.value
    times = f", {ratio:.3g} times the floor" if 0 < ratio <= 1000 else ", over 1,000 times the floor" if ratio else ""
    return (
        f"The forward KL on the task's inputs is {least}{bounds(on.forward.mean)} nats per token{times}. RL's Razor "
        "(arXiv 2509.04259) predicts forgetting from this number alone, growing about as its square: of fine-tunes of "
        "one base to one task, the one where it is smallest forgets least. A prediction; what was lost is measured by "
        "the scores."
    )


def _drift(off: Distribution | None, floor: Floor | None) -> tuple[_Drift | None, str | None]:
    """The drift, or why there is none to judge by."""
    if off is None:
        return None, "the off-task drift was not measured"
    if off.forward is None:
        why = "only bits per byte can be compared" if off.bits_per_byte else "its forward KL was not measured"
        return None, f"the off-task drift is not known: {why}"
    if off.tokens and off.non_finite > NON_FINITE * off.tokens:
        return None, f"{off.non_finite:,} of {off.tokens:,} off-task tokens have NaN or infinite logits"
    mean = off.forward.mean
    if mean.low is None or mean.high is None:
        return None, f"the off-task drift has no interval: {mean.warning}"
    high = math.inf if off.kind == "lower bound" else mean.high
    least = "at least " if off.kind == "lower bound" else ""
    said = f"KL(base‖tuned) {least}{bounds(mean)} nats/token"
    return _Drift(mean.low, high, None if floor is None else floor.value, said, off.prediction), None


def _sorted(scores: Sequence[Score]) -> _Scores:
    named = any(score.role == "task" for score in scores)
    aims = [score for score in scores if score.role == "task"] if named else list(scores)
    gained = [score for score in aims if score.outcome == "gained"]
    return _Scores(
        aims=aims,
        gained=gained,
        lost=[score for score in scores if score.outcome == "LOST"],
        mates=[_mates(one, scores) for one in gained],
        others=[score for score in scores if score.role == "other" and score.outcome != "gained"],
        named=named,
    )


def _mates(one: Score, scores: Sequence[Score]) -> list[Score]:
    """Its siblings: those that are named so, and the tasks of its family."""
    return [
        score
        for score in scores
        if score is not one
        and (
            (one.role == "task" and score.role == "sibling") or (one.family is not None and score.family == one.family)
        )
    ]


def _alone(mates: Sequence[Score]) -> bool | None:
    """No sibling gained; None where that cannot be told, for there is none, or an unclear one."""
    if any(mate.outcome == "gained" for mate in mates):
        return False
    return True if mates and all(mate.outcome != "unclear" for mate in mates) else None


def _verdict(drift: _Drift | None, scores: _Scores, why_not: str | None) -> tuple[Verdict, str]:
    """In the order of precedence."""
    if drift is None:
        return "insufficient evidence", why_not or ""
    if not drift.measurable:
        return "unchanged", "no measurable drift: what differs is within the noise floor"
    if not drift.wrecked and (unclear := _unclear(drift, scores)) is not None:
        return "insufficient evidence", unclear
    if drift.low >= LARGE and scores.narrow:
        return "party trick", f"large drift off the task, gain on {_names(scores.gained)}, none on its siblings"
    if drift.wrecked and drift.texts is not None:
        gained = f", whatever it gained on {_names(scores.gained)}" if scores.gained else ""
        return "damaged", f"it lost the off-task texts themselves, predicted {written(drift.texts)}{gained}"
    if scores.lost and scores.outweighed:
        aim = " it was trained for" if scores.named else ""
        less = "more than it gained" if scores.gained else f"and gained nothing{aim}"
        return "damaged", f"it lost {_names(scores.lost)}, {less}"
    if not scores.gained:
        if drift.low >= NOTICEABLE and scores.unclear:
            return (
                "insufficient evidence",
                "it moved; nothing says what it was tuned for, and too few items what gained",
            )
        if drift.low >= NOTICEABLE:
            return "drifted for nothing", "it moved off the task, and nothing that was scored gained"
        return "unchanged", "a small drift, and no score that changed for sure"
    if scores.lost:
        return "improved at a price", f"gain on {_names(scores.gained)}, loss on {_names(scores.lost)}"
    if drift.high > LARGE:
        size = "is" if drift.low >= LARGE else "may be"
        seen = f"; {scores.losable}" if scores.losable else ""
        return "improved at a price", f"gain on {_names(scores.gained)}, and the drift off the task {size} large{seen}"
    return "improved, still itself", f"gain on {_names(scores.gained)}, small drift off the task, nothing surely lost"


def _unclear(drift: _Drift, scores: _Scores) -> str | None:
    """Why no verdict can be had of a drift that there is."""
    if not scores.aims and not scores.lost:
        return "it moved, and no task was scored"
    if drift.wide:
        return "the interval of the drift reaches from small to large; measure more texts"
    if scores.unclear and scores.named and not scores.lost:
        return "too few items to tell whether the task gained"
    return None


def _conditions(drift: _Drift | None, scores: _Scores, why_not: str | None) -> list[Condition]:
    """Each with its numbers."""
    found = [Condition(text=f"off-task drift known: {drift.said if drift else why_not}", met=drift is not None)]
    if drift is not None:
        found += [_floor_condition(drift), *_size_conditions(drift)]
        found += [] if drift.texts is None else [_texts_condition(drift.texts)]
    aims = scores.aims if scores.named else scores.gained
    said = ", ".join(f"{one.name} {signed(one.change)}" for one in aims)
    what = "the task gained" if scores.named else "a task gained"
    found.append(Condition(text=f"{what}: {said or 'none'}", met=bool(scores.gained) if scores.aims else None))
    for one, mates in zip(scores.gained, scores.mates, strict=True):
        text = ", ".join(f"{mate.name} {signed(mate.change)} {mate.outcome}" for mate in mates)
        found.append(Condition(text=f"no sibling of {one.name} gained: {text or 'none was scored'}", met=_alone(mates)))
    lost = ", ".join(f"{one.name} {signed(one.change)}" for one in scores.lost)
    text = f"nothing surely lost{': ' if lost else ''}{lost}"
    return [*found, Condition(text=text, met=not lost if scores.aims else None), *_losable(scores)]


def _losable(scores: _Scores) -> list[Condition]:
    """Whether a loss could be seen at all: at the least score, or with few items, none can."""
    if not scores.aims or scores.losable is None:
        return []
    all_of_them = all(score.could_lose for score in scores.others) if scores.others else None
    return [Condition(text=f"a loss could be seen: {scores.losable}", met=all_of_them)]


def _floor_condition(drift: _Drift) -> Condition:
    if drift.floor is None:
        return Condition(text="drift above the noise floor: the floor was not measured", met=None)
    limit = FLOOR_TIMES * drift.floor
    text = f"drift above the noise floor: {_upper(drift)}, {FLOOR_TIMES:g} × floor is {limit:.3g}"
    return Condition(text=text, met=drift.measurable)


def _size_conditions(drift: _Drift) -> list[Condition]:
    low = f"lower bound {drift.low:.3g}, at least"
    return [
        Condition(text=f"noticeable: {low} {NOTICEABLE:g}", met=drift.low >= NOTICEABLE),
        Condition(text=f"small: {_upper(drift)}, at most {LARGE:g}", met=drift.high <= LARGE),
        Condition(text=f"large: {low} {LARGE:g}", met=drift.low >= LARGE),
    ]


def _texts_condition(texts: Prediction) -> Condition:
    """Of a base that hardly predicts them itself it cannot be judged."""
    said = f"{written(texts)} {signed(texts.change)}, lost from -{TEXTS_LOST:g} on"
    gone = texts_lost(texts)
    return Condition(text=f"the off-task texts are still predicted: {said}", met=None if gone is None else not gone)


def _upper(drift: _Drift) -> str:
    return f"upper bound {drift.high:.3g}" if math.isfinite(drift.high) else "upper bound not known"


def bounds(interval: Interval) -> str:
    """ "0.094 [0.081, 0.109]"."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:.3g}"
    return f"{interval.value:.3g} [{interval.low:.3g}, {interval.high:.3g}]"


def signed(interval: Interval) -> str:
    """ "+0.37 [+0.31, +0.43]"."""
    if interval.low is None or interval.high is None:
        return f"{interval.value:+.2f}"
    return f"{interval.value:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"


def _names(scores: Sequence[Score]) -> str:
    names = [score.name for score in scores]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _low(score: Score) -> float:
    return score.change.value if score.change.low is None else score.change.low


def _high(score: Score) -> float:
    return score.change.value if score.change.high is None else score.change.high
