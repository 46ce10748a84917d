"""How far a reward can be trusted: agreement and disagreement over KL against slow counts; what a page shows."""

import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.report.made import CONFIG, step, write_run
from tests.tolerances import EXACT

from kleash.masked import clustered_ratio
from kleash.report import figures, trust
from kleash.report.log import load
from kleash.report.run import write_report
from kleash.report.trust import Seen, agreement, apart, binned
from kleash.runlog import RunEnd, RunStart, Sample, ScoreEvaluation


def samples(*, steps: int = 12, seed: int = 0) -> list[Sample]:
    """A proxy that is the gold reward plus noise that grows with the KL, and an ensemble whose members part with it."""
    rng = random.Random(seed)
    found = []
    for number in range(steps):
        for prompt in ("a", "b", "c"):
            for _ in range(4):
                kl = 3.0 * number * rng.uniform(0.8, 1.2)
                gold = rng.gauss(0, 1)
                found.append(
                    Sample(step=number, prompt=prompt, completion="x", score=gold + kl / 15 * rng.gauss(0, 1),
                           scores={"proxy": 0.0, "gold": gold}, disagreement={"proxy": 0.1 + kl / 10}, kl_ref=kl)
                )  # fmt: skip
    return found


def test_agreement_counts_pairs_of_a_prompt_in_a_step():
    def one(step: int, prompt: str, score: float | None, gold: float | None, kl: float | None = 1.0) -> Sample:
        return Sample(step=step, prompt=prompt, completion="", score=score, scores={"gold": gold}, kl_ref=kl)

    seen = agreement(
        [
            one(0, "a", 1.0, 0.5, 2.0),
            one(0, "a", 2.0, 0.7, 4.0),  # alike: 1
            one(0, "a", 2.0, 0.1, 6.0),  # against the first: 0; a tie with the second: ½
            one(0, "b", 1.0, 0.3),
            one(0, "b", 2.0, 0.3),  # gold does not tell them apart
            one(1, "a", 9.0, 0.9),  # alone in its step
            one(0, "b", None, 0.9),
            one(0, "b", 3.0, None),
            one(0, "b", 3.0, 0.9, None),
        ],
        "gold",
    )
    assert sorted((s.kl, s.value) for s in seen) == [(3.0, 1.0), (4.0, 0.0), (5.0, 0.5)]
    assert {s.cluster for s in seen} == {"a"}


def test_points_are_means_with_clustered_errors():
    rng = np.random.default_rng(0)
    drawn = zip(rng.random(210), rng.random(210), rng.integers(5, size=210), strict=True)
    seen = [Seen(float(kl), float(value), str(c)) for kl, value, c in drawn]
    points = binned(seen)
    assert len(points) == 8
    assert sum(point.size for point in points) == 210
    ordered = sorted(seen, key=lambda one: one.kl)
    first = ordered[: points[0].size]
    value, error = clustered_ratio(
        torch.tensor([s.value for s in first], dtype=torch.float64),
        torch.ones(len(first)).double(),
        torch.tensor([int(s.cluster) for s in first]),
    )
    assert points[0].value == pytest.approx(value, rel=EXACT)
    assert points[0].error == pytest.approx(error, rel=EXACT)
    assert points[0].kl == pytest.approx(math.fsum(s.kl for s in first) / len(first), rel=EXACT)
    assert binned([]) == []
    assert binned(seen[:1])[0].error is None


def test_a_reward_that_is_true_near_the_reference_only_is_seen():
    found = [point.value for point in binned(agreement(samples(steps=40), "gold"))]
    assert found[0] > 0.8
    assert found[-1] < 0.65
    parted = [point.value for point in binned(apart(samples(), "proxy"))]
    assert parted == sorted(parted)


SPREADS = {"proxy": 0.5, "gold": 0.2}


def run_dir(folder: Path, rewards: list[dict[str, object]]) -> Path:
    steps = [
        step(n, 12, scores={"proxy": 0.1 * n, "gold": 0.5 - 0.01 * n}, score_std=0.5, scores_std=SPREADS)
        for n in range(12)
    ]
    start = RunStart(config=CONFIG | {"rewards": rewards}, started="2026-01-01T00:00:00")
    return write_run(folder, [start, *steps, RunEnd(reason="finished", step=12)], samples())


def test_the_page_shows_it_where_there_is_something_watched(tmp_path):
    rewards = [{"use": "model:./rm", "name": "proxy", "weight": 1.0}, {"use": "./g.py:gold", "weight": 0.0}]
    folder = run_dir(tmp_path / "watched", list(rewards))
    page = write_report(folder).read_text()
    assert "How far the reward can be trusted" in page
    for title in ("Agreement with a watched reward", "Ensemble’s disagreement", "Trained on and watched"):
        assert title in page
    (chart,) = [c for c in trust.charts(load(folder)) if c.title == "Trained on and watched"]
    assert [series.name for series in chart.series] == ["score (trained on)", "gold (watched)"]
    assert chart.series[1].y[10] == pytest.approx(-0.1 / 0.2, rel=EXACT)


def test_nothing_watched_nothing_shown(tmp_path):
    rewards = [{"use": "a", "weight": 1.0}, {"use": "b", "weight": 1.0}]
    log = load(run_dir(tmp_path / "plain", list(rewards)))
    assert trust.watched(log) == []
    assert [chart.title for chart in trust.charts(log)] == ["Ensemble’s disagreement"]
    bare = load(write_run(tmp_path / "bare", [step(0, 2), step(1, 2)]))
    assert trust.charts(bare) == []
    assert all(heading != "How far the reward can be trusted" for heading, _, _ in figures.groups(bare))


def test_calibration_is_drawn_from_the_last_evaluation():
    done = [
        ScoreEvaluation(step=n, loss=0.5, accuracy=0.7, accuracy_low=0.6, accuracy_high=0.8, n_pairs=30,
                        bins=[(20, 0.6, 0.5 + n / 10), (10, 0.9, 0.9)])
        for n in (0, 1)
    ]  # fmt: skip
    chart = trust.reliability(done)
    assert (chart.x, chart.series[0].y, chart.target) == ([0.6, 0.9], [0.6, 0.9], [0.6, 0.9])
    assert not trust.reliability([]).drawn()
