"""kleash's own runs through the importer: written by the run log's writer, against its own reading rules."""

from pathlib import Path

import numpy as np
import pytest
from tests.tolerances import EXACT

from kleash.errors import RunError
from kleash.records import Reading, Step
from kleash.runlog import (
    Checkpoint,
    Evaluation,
    Event,
    PairEvaluation,
    PairStep,
    ReferenceChange,
    Resume,
    RunEnd,
    RunStart,
    Sample,
    Writer,
    last_of_each_step,
    read,
)
from kleash.runlog.importers import read_log

CONFIG = {"rewards": [{"use": "vader", "weight": 1.0}, {"use": "a:gold", "name": "gold", "weight": 0.0}]}


def reading(value: float, unit: str) -> Reading:
    return Reading(
        kind="kl_ref",
        value=value,
        unit=unit,  # pyright: ignore[reportArgumentType]
        estimator="exact",
        n_prompts=2,
        n_sequences=4,
        n_tokens=40,
    )


def step(number: int, kl: float) -> Step:
    return Step(
        step=number,
        beta=0.1,
        kl_ref=reading(10 * kl, "nats/sequence"),
        kl_ref_token=reading(kl, "nats/token"),
        target="4 nats/sequence",
        score=kl / 2,
        scores={"vader": kl / 2, "gold": -kl},
        length=10.0,
    )


def write(folder: Path, *events: Event) -> None:
    with Writer(folder / "events.jsonl") as writer:
        for event in events:
            writer.write(event)


def test_a_run_that_was_resumed(tmp_path: Path) -> None:
    write(
        tmp_path,
        RunStart(config=CONFIG, started="2026-01-01"),
        *(step(n, 0.1 * n) for n in range(6)),
        Evaluation(step=3, how="greedy", n_prompts=2, n_samples=2, score=0.3),
        Checkpoint(step=3, path="checkpoints/step-3"),
        Evaluation(step=5, how="greedy", n_prompts=2, n_samples=2, score=0.5),
        Checkpoint(step=5, path="checkpoints/step-5"),
        Resume(step=3),
        *(step(n, 0.2 * n) for n in range(3, 5)),
        ReferenceChange(step=4, kind="ema", fingerprint={}, share=0.5),
        RunEnd(reason="finished", step=5),
    )
    for number in (3, 5):
        (tmp_path / "checkpoints" / f"step-{number}").mkdir(parents=True)
    log = read_log(tmp_path)
    kept = last_of_each_step(read(tmp_path / "events.jsonl"))
    assert log.step.tolist() == [one.step for one in kept]
    for name, values in {
        "kl_ref": [one.kl_ref_token.value for one in kept if one.kl_ref_token],
        "kl_ref_sequence": [one.kl_ref.value for one in kept if one.kl_ref],
        "reward": [one.score for one in kept],
        "reward/vader": [one.scores["vader"] for one in kept],
        "gold/gold": [one.scores["gold"] for one in kept],
    }.items():
        assert log.columns[name].tolist() == pytest.approx(values, rel=EXACT)
    held_out = log.columns["held_out/score"]
    assert held_out[np.isfinite(held_out)].tolist() == [0.3]
    assert log.step[np.isfinite(held_out)].tolist() == [3]
    assert [model.step for model in log.checkpoints] == [3]
    assert (log.trainer, log.ended, log.target_unit) == ("kleash", "finished", "nats/sequence")
    assert any("the reference moved at step 4" in note for note in log.notes)


def test_pairs_measure_the_kl_where_they_are_evaluated(tmp_path: Path) -> None:
    kls = {"kl_ref": reading(2.0, "nats/sequence"), "kl_ref_token": reading(0.25, "nats/token")}
    write(
        tmp_path,
        RunStart(config={}, started="2026-01-01", verb="dpo"),
        *(PairStep(step=n, loss=0.6, reward_margin=0.1 * n, logprob_chosen=-3.0, beta=0.1) for n in range(4)),
        PairEvaluation(step=4, held_out=True, n_pairs=3, pairs="x", accuracy=0.75, length=8.0, **kls),
    )
    log = read_log(tmp_path)
    assert log.step.tolist() == [0, 1, 2, 3, 4]
    assert log.columns["kl_ref"][4] == kls["kl_ref_token"].value
    assert log.columns["kl_ref_sequence"][4] == kls["kl_ref"].value
    assert log.columns["held_out/accuracy"][4] == 0.75
    assert np.isnan(log.columns["kl_ref"][:4]).all()
    assert log.label == "kleash dpo"


def test_samples_are_read_when_asked(tmp_path: Path) -> None:
    write(tmp_path, *(step(n, 0.1) for n in range(3)))
    with Writer(tmp_path / "samples.jsonl") as writer:
        for number in (0, 0, 1, 2):
            writer.write(Sample(step=number, prompt="Why?", completion=f"so {number}", score=1.0))
        writer.write(Resume(step=2))
        writer.write(Sample(step=2, prompt=[{"role": "user", "content": "Why?"}], completion="again"))
    with open(tmp_path / "samples.jsonl", "ab") as file:
        file.write(b'{"event": "sample", "step": 3, "prom')
    log = read_log(tmp_path)
    assert log.sample_steps == (0, 1, 2)
    assert [(one.step, one.completion) for one in log.samples((2, 0))] == [(0, "so 0"), (0, "so 0"), (2, "again")]
    assert log.samples((2,))[0].prompt == "Why?"
    assert any("torn line" in note for note in log.notes)


def test_a_torn_last_line_and_a_damaged_one(tmp_path: Path) -> None:
    write(tmp_path, step(0, 0.1), step(1, 0.1))
    events = tmp_path / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole[:-30])
    log = read_log(events)
    assert log.step.tolist() == [0]
    assert log.notes == ("the last line is torn, and left out",)
    events.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(RunError, match="line 1"):
        read_log(tmp_path)
