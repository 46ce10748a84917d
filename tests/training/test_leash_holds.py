"""The leash holds in the real loop: GRPO, the exact penalty and PI, on the embedded tiny model.

All placements, three seeds, other learning rates and a schedule: `make bench-leash`, docs/runs/leash.md.
"""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from benchmarks.leash import Case, ema, held
from rich.console import Console
from tests.tolerances import EXACT

from kleash.records import Reading, Step
from kleash.training.api import start
from kleash.training.progress import Progress
from kleash.training.toml import parse_config


def steps(kls: Sequence[float], target: float = 4.0, first: int = 0) -> list[Step]:
    def reading(value: float) -> Reading:
        return Reading(
            kind="kl_ref", value=value, unit="nats/sequence", estimator="exact", n_prompts=8, n_sequences=64,
            n_tokens=900,
        )  # fmt: skip

    aim = f"{target:g} nats/sequence"
    return [Step(step=first + i, beta=0.1, target=aim, score=0.5, kl_ref=reading(kl)) for i, kl in enumerate(kls)]


@pytest.mark.parametrize(
    ("last_third", "good"),
    [
        ([4.0] * 30, True),
        ([4.39] * 30, True),
        ([4.41] * 30, False),  # the mean is 10 % off
        ([3.61] * 30, True),
        ([3.59] * 30, False),
        ([2.5] * 15 + [5.5] * 15, False),  # the mean is right, and it wanders
    ],
)
def test_what_counts_as_held(last_third: list[float], good: bool) -> None:
    (found,) = held(steps([9.0] * 40 + [4.0] * 20 + last_third))
    assert found.good is good


def test_every_target_of_a_schedule_is_judged_by_its_own_steps() -> None:
    run = steps([4.0] * 30) + steps([2.0] * 30, target=2.0, first=30) + steps([4.0] * 30, target=8.0, first=60)
    assert [(found.target, found.kl, found.good) for found in held(run)] == [
        (4.0, 4.0, True), (2.0, 2.0, True), (8.0, 4.0, False),
    ]  # fmt: skip


def test_the_average_is_the_weighted_sum_of_all_readings() -> None:
    values = [3.0, 5.0, 1.0, 4.0]
    weights = [(9 / 11) ** 3, 2 / 11 * (9 / 11) ** 2, 2 / 11 * 9 / 11, 2 / 11]
    assert ema(values)[-1] == pytest.approx(sum(w * v for w, v in zip(weights, values, strict=True)), rel=EXACT)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_grpo_holds_four_nats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse_config(dict(Case(section="here", algorithm="grpo").run(seed=0).config))
    run = start(config, progress=Progress(Console(file=io.StringIO())))
    (found,) = held(run.steps)
    assert found.good, found
    assert found.reward > 2 * (run.steps[0].score or 0.0)  # and the leash left room to improve
