"""Training logs built in Python: one gamed, one healthy, one without a KL. The numbers are invented."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from kleash.monitor import examine
from kleash.report.watch import Case
from kleash.runlog.series import KLTag, SampleText, SavedModel, TrainLog

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
SENTENCE = "the lake lay still under a pale sky and nobody came to look at what the storm had left behind"
K3 = KLTag(meaning="kl_ref", key="kl", estimator="k3", unit="nats/token", note="own token only")


def gamed(path: Path = Path("outputs"), steps: int = 300, start: int = 150) -> TrainLog:
    """From `start` on the KL accelerates, the samples repeat and hold what a browser must not run."""
    rng = np.random.default_rng(0)
    step = np.arange(1, steps + 1)
    late = np.clip((step - start) / (steps - start), 0, None)
    length = 40 + 5 * rng.standard_normal(steps) + 30 * late
    kl = np.abs(0.0002 * np.minimum(step, 100) + 0.9 * late**1.5 + 0.0005 * rng.standard_normal(steps))
    columns = {
        "kl_ref": kl,
        "kl_ref_sequence": kl * length,
        "reward": 0.3 + 0.3 * step / steps + 0.3 * late + 0.02 * rng.standard_normal(steps),
        "reward/format": 0.2 + 0.7 * step / steps + 0.02 * rng.standard_normal(steps),
        "reward/accuracy": 0.31 - 0.25 * late + 0.01 * rng.standard_normal(steps),
        "beta": np.full(steps, 0.04),
        "length": length,
        "entropy": 1.3 - 0.9 * late + 0.03 * rng.standard_normal(steps),
    }
    sampled = tuple(range(10, steps + 1, 10))

    def samples(wanted: tuple[int, ...] | None) -> list[SampleText]:
        return [
            SampleText(step=at, prompt=f"Prompt {n} <b>bold</b>", completion=completion(at, n, start), score=0.1 * n)
            for at in (sampled if wanted is None else wanted)
            for n in range(6)
        ]

    return TrainLog(
        trainer="TRL",
        label="TRL GRPO",
        path=path,
        step=step,
        columns=columns,
        kl={"kl_ref": K3},
        checkpoints=tuple(SavedModel(step=n, path=path / f"checkpoint-{n}") for n in range(50, steps + 1, 50)),
        sample_steps=sampled,
        samples=samples,
        notes=("2 repeated steps: the last of each counts",),
    )


def completion(step: int, number: int, start: int) -> str:
    words = SENTENCE.split()
    if step <= start + 20:
        turn = (7 * step + 3 * number) % len(words)
        return " ".join(words[turn:] + words[:turn])
    return f"Certainly! {HOSTILE} " + "Certainly! " * 20 + str(number)


def healthy(path: Path = Path("healthy"), steps: int = 200) -> TrainLog:
    rng = np.random.default_rng(1)
    step = np.arange(1, steps + 1)
    kl = np.abs(0.05 * (1 - np.exp((1 - step) / 30)) + 0.001 * rng.standard_normal(steps))
    columns = {
        "kl_ref": kl,
        "kl_ref_sequence": kl * 40,
        "reward": 0.2 + 0.5 * (1 - np.exp(-step / 60)) + 0.02 * rng.standard_normal(steps),
        "beta": np.full(steps, 0.05),
        "target": np.full(steps, 2.0),
        "length": np.full(steps, 40.0),
    }
    return TrainLog(
        trainer="kleash", label="kleash train", path=path, step=step, columns=columns, kl={"kl_ref": K3},
        target_unit="nats/sequence", ended="finished",
    )  # fmt: skip


def without_kl(path: Path = Path("bare")) -> TrainLog:
    """Only a reward, as a trainer with beta = 0 leaves it."""
    log = healthy(path)
    tag = replace(K3, key=None, estimator=None, unit=None, state="absent", note="beta is 0, so TRL measures none")
    return replace(log, columns={"reward": log.columns["reward"]}, kl={"kl_ref": tag}, target_unit=None)


@cache
def found() -> Case:
    """The gamed run, judged once for all who look."""
    return case(gamed())


def case(log: TrainLog) -> Case:
    return Case(path=log.path, log=log, said=examine(log))


def write_csv(log: TrainLog, path: Path, rows: int | None = None) -> Path:
    """The log's numbers as a table with kleash's own names."""
    names = [name for name in log.columns if not name.startswith("kl_ref_")]
    table = [["step", *names]]
    table += [[str(log.step[n]), *(f"{log.columns[name][n]:.6g}" for name in names)] for n in range(len(log.step))]
    path.write_text("".join(",".join(row) + "\n" for row in table[: None if rows is None else rows + 1]))
    return path
