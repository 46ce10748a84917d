"""How far a learned reward can be trusted: its calibration on held-out pairs, and what becomes of it as the KL grows.

A reward model is accurate mainly near the text it was trained on, which is the reference's. So what it says is held
against each sample's own KL: how often it agrees with a better-informed reward that is only watched (weight = 0), and
how far the members of an ensemble are apart.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from kleash.report.charts import Chart, Series
from kleash.report.log import Log, prompt_text
from kleash.runlog import Sample

#: Points of a figure over KL: as many samples (or pairs) in each, at least so many.
BINS, LEAST = 8, 20


class Seen(NamedTuple):
    """One number at a KL; cluster: what it shares its noise with, the prompt."""

    kl: float
    value: float
    cluster: str


class Point(NamedTuple):
    """A bin's mean KL and mean value with its standard error, clustered; None with a single cluster."""

    kl: float
    value: float
    error: float | None
    size: int


def agreement(samples: Sequence[Sample], watched: str) -> list[Seen]:
    """Pairs of samples of one prompt in one step: 1 where score and watched reward order them alike, 0 where not.

    A tie in the score is half; pairs that the watched reward does not tell apart say nothing. At the pair's mean KL.
    """
    groups: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        if None not in (sample.kl_ref, sample.score, sample.scores.get(watched)):
            groups[sample.step, prompt_text(sample.prompt)].append(sample)
    found: list[Seen] = []
    for (_, prompt), group in groups.items():
        for i, a in enumerate(group):
            for b in group[:i]:
                truth, said = _difference(a.scores[watched], b.scores[watched]), _difference(a.score, b.score)
                if truth:
                    right = 0.5 if said == 0 else float(said * truth > 0)
                    found.append(Seen(((a.kl_ref or 0.0) + (b.kl_ref or 0.0)) / 2, right, prompt))
    return found


def _difference(a: float | None, b: float | None) -> float:
    return (a or 0.0) - (b or 0.0)


def apart(samples: Sequence[Sample], ensemble: str) -> list[Seen]:
    """Of each sample, the standard deviation between the members' scores."""
    return [
        Seen(sample.kl_ref, value, prompt_text(sample.prompt))
        for sample in samples
        if sample.kl_ref is not None and (value := sample.disagreement.get(ensemble)) is not None
    ]


def binned(seen: Sequence[Seen]) -> list[Point]:
    """In order of KL, in bins of as many each (with all of a lone bin, where there are few)."""
    ordered = sorted(seen, key=lambda one: one.kl)
    count = max(1, min(BINS, len(ordered) // LEAST))
    edges = [len(ordered) * i // count for i in range(count + 1)]
    return [_point(ordered[first:last]) for first, last in pairwise(edges) if last > first]


def _point(seen: Sequence[Seen]) -> Point:
    """Mean and its cluster-robust (CR1) standard error, as `kleash.masked.clustered_ratio` has it."""
    n, mean = len(seen), math.fsum(one.value for one in seen) / len(seen)
    residuals: dict[str, float] = defaultdict(float)
    for one in seen:
        residuals[one.cluster] += one.value - mean
    m = len(residuals)
    error = math.sqrt(m / (m - 1) * math.fsum(r * r for r in residuals.values())) / n if m > 1 else None
    return Point(math.fsum(one.kl for one in seen) / n, mean, error, n)


def charts(log: Log) -> list[Chart]:
    """Agreement with each watched reward, and each ensemble's disagreement, over the samples' KL."""
    found: list[Chart] = []
    names = watched(log)
    agreeing = {name: binned(agreement(log.samples, name)) for name in names}
    if any(agreeing.values()):
        found.append(
            _chart(
                "Agreement with a watched reward",
                "share of pairs",
                agreeing,
                level=0.5,
                note="Of two samples of a prompt in one step: how often the score prefers the one that the watched "
                "reward (weight = 0) does. A coin: 0.5.",
            )
        )
    ensembles = dict.fromkeys(name for sample in log.samples for name in sample.disagreement)
    parted = {name: binned(apart(log.samples, name)) for name in ensembles}
    if any(parted.values()):
        found.append(
            _chart("Ensemble’s disagreement", "std between members", parted, note="Of each sample’s scores.", zero=True)
        )
    return [*found, *over_optimisation(log, names)]


def watched(log: Log) -> list[str]:
    """Names of the rewards that are logged and have no effect: weight = 0 in the config, which has them in order."""
    specs = (log.start.config.get("rewards") or []) if log.start else []
    names = list(log.steps[0].scores)
    if len(specs) != len(names):
        return []
    return [
        name for name, spec in zip(names, specs, strict=True) if isinstance(spec, Mapping) and spec.get("weight") == 0
    ]


def _chart(
    title: str,
    unit: str,
    lines: Mapping[str, list[Point]],
    *,
    note: str,
    zero: bool = False,
    level: float | None = None,
) -> Chart:
    longest = max(lines.values(), key=len)
    series = [
        Series(
            name=name,
            x=_padded([p.kl for p in points], len(longest)),
            y=_padded([p.value for p in points], len(longest)),
            low=_padded([_at(p, -1) for p in points], len(longest)),
            high=_padded([_at(p, +1) for p in points], len(longest)),
        )
        for name, points in lines.items()
        if points
    ]
    return Chart(
        title=title,
        unit=unit,
        x=[p.kl for p in longest],
        series=series,
        target=None if level is None else [level] * len(longest),
        zero=zero,
        path=True,
        x_label="KL of the sample, nats",
        note=f"{note} Bins of about {longest[0].size} from samples.jsonl; band: 95 %, clustered by prompt.",
    )


def _at(point: Point, sign: int) -> float | None:
    return None if point.error is None else point.value + sign * 1.96 * point.error


def _padded(values: Iterable[float | None], length: int) -> list[float | None]:
    found = list(values)
    return found + [None] * (length - len(found))


def over_optimisation(log: Log, names: Sequence[str]) -> list[Chart]:
    """Score and watched rewards over √KL, each from its first mean in its first standard deviations: one scale."""
    first = log.steps[0]
    lines: dict[str, Callable[[Any], float | None]] = {"score (trained on)": lambda step: step.score}
    lines |= {f"{name} (watched)": lambda step, n=name: step.scores.get(n) for name in names}
    spreads = [first.score_std, *(first.scores_std.get(name) for name in names)]
    if not names or not all(spreads):
        return []
    roots = [math.sqrt(max(0.0, step.kl_ref.value)) if step.kl_ref else None for step in log.steps]
    series = [
        Series(name=label, x=roots, y=_standard([extract(step) for step in log.steps], spread))
        for (label, extract), spread in zip(lines.items(), spreads, strict=True)
    ]
    return [
        Chart(
            title="Trained on and watched",
            unit="std of the first step",
            x=[float(step.step) for step in log.steps],
            series=series,
            path=True,
            x_label="√KL",
            note="Each as its rise since the first step. Where the score goes on rising and the other falls, "
            "it is over-optimised.",
        )
    ]


def _standard(values: Sequence[float | None], spread: float | None) -> list[float | None]:
    start = values[0]
    return [None if v is None or start is None or not spread else (v - start) / spread for v in values]


def reliability(evaluations: Sequence[Any]) -> Chart:
    """Of a reward model's last evaluation: how often it is right, over how sure it is. On the line it is calibrated."""
    bins = evaluations[-1].bins if evaluations else []
    return Chart(
        title="Calibration on the held-out pairs",
        unit="share right",
        x=[confidence for _, confidence, _ in bins],
        series=[Series(name="accuracy", y=[accuracy for _, _, accuracy in bins])],
        target=[confidence for _, confidence, _ in bins],
        path=True,
        x_label="confidence σ(|r_c − r_r|)",
        note="Last evaluation, in bins of confidence: "
        + ", ".join(str(count) for count, _, _ in bins)
        + " pairs. Dashed: calibrated. Below it the model is too sure of itself.",
    )
