"""Which checkpoints a name means, what their audits are called, and which of a curve is worth a try."""

import re
from collections.abc import Sequence
from dataclasses import replace

from kleash.drift.hint import LEAST_GAIN, MOST_KL
from kleash.drift.question import Question
from kleash.drift.sources import split_name
from kleash.drift.standings import Ranking, Standing
from kleash.errors import UsageError
from kleash.models.runs import checkpoints, model_of


def chosen(name: str) -> str:
    """The model that is audited: of a run the one that `model_of` takes, in the precision that is asked for."""
    stem, word = split_name(name)
    return model_of(stem) if word is None else f"{model_of(stem)}@{word}"


def course(name: str) -> list[str]:
    """All checkpoints of a run, in their order.

    Raises:
        UsageError: it is no run, or has a single one.
    """
    several = checkpoints(name, inside=True)
    if len(several) < 2:
        raise UsageError(
            f"--curve is for a run with several checkpoints; {name} has {len(several) if several[0].step else 'none'}"
        )
    return [one.name for one in several]


def along(question: Question) -> Question:
    """The same question of each checkpoint of a curve: the KL and the scores, no samples to look at."""
    return replace(question, effort=replace(question.effort, samples=0, yardsticks=False))


def folders(names: Sequence[str]) -> list[str]:
    """A directory's name for each tuned model, no two the same."""
    found: list[str] = []
    for name in names:
        stem = "-".join(re.findall(r"[\w.@]+", name)[-3:]) or "model"
        found.append(stem if stem not in found else f"{stem}-{len(found)}")
    return found


def nearer(curve: Ranking) -> str | None:
    """A checkpoint with at most half the last one's KL and at least half its gain, the one that scores highest."""
    last = curve.rows[-1]
    if last.forward is None or last.score is None:
        return None
    before, gain = last.score.base, last.score.tuned - last.score.base
    found = [
        row
        for row in curve.rows[:-1]
        if row.forward is not None and row.score is not None and row.forward.value <= MOST_KL * last.forward.value
        if row.kind == last.kind == "exact"
        if gain > 0 and row.score.tuned - before >= LEAST_GAIN * gain
    ]
    best = max(found, key=scored, default=None)
    return None if best is None or best.forward is None else told(best)


def scored(row: Standing) -> float:
    return row.score.tuned if row.score else 0.0


def told(row: Standing) -> str:
    assert row.forward is not None and row.score is not None
    moved = f"KL off task, base||tuned, {row.forward.value:.3g} nats/token"
    return f"try {row.name} ({moved}, {row.score.name} {row.score.tuned:.2f})"
