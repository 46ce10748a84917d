"""Logs made for a test: columns of numbers, and samples."""

from pathlib import Path

import numpy as np

from kleash.runlog.series import KLTag, SampleText, SavedModel, TrainLog


def log(*, steps=None, samples=None, checkpoints=(), tag=None, smoothing=1, target_unit=None, config=None, **columns):
    """A log with these columns; samples: step → completions (one prompt each); names with __ for families."""
    arrays = {name.replace("__", "/"): np.asarray(x, dtype=float) for name, x in columns.items()}
    count = len(next(iter(arrays.values())))
    at = np.arange(count) if steps is None else np.asarray(steps)
    texts = [
        SampleText(step=step, prompt=f"prompt number {n}", completion=text)
        for step, completions in (samples or {}).items()
        for n, text in enumerate(completions)
    ]
    return TrainLog(
        trainer="test",
        label="a test's log",
        path=Path("log"),
        step=at.astype(np.int64),
        columns=arrays,
        kl={} if tag is None else {"kl_ref": tag},
        smoothing=smoothing,
        target_unit=target_unit,
        config=config or {},
        checkpoints=tuple(SavedModel(step=s, path=Path(f"checkpoint-{s}")) for s in checkpoints),
        sample_steps=tuple(sorted(samples or {})),
        samples=lambda steps: [t for t in texts if steps is None or t.step in steps],
    )


def prefix(whole: TrainLog, rows: int) -> TrainLog:
    """The log as it stood after so many rows."""
    from dataclasses import replace

    last = int(whole.step[rows - 1])
    kept = tuple(step for step in whole.sample_steps if step <= last)
    return replace(
        whole,
        step=whole.step[:rows],
        columns={name: x[:rows] for name, x in whole.columns.items()},
        sample_steps=kept,
        samples=lambda steps: whole.samples(kept if steps is None else steps),
        checkpoints=tuple(saved for saved in whole.checkpoints if saved.step <= last),
    )


def noisy(seed: int, level: float, size: float, count: int, memory: float = 0.5) -> np.ndarray:
    """A level with AR(1) noise."""
    generator = np.random.default_rng(seed)
    noise = np.zeros(count)
    for t in range(count):
        noise[t] = (memory * noise[t - 1] if t else 0.0) + generator.normal(scale=size)
    return level + noise


K3 = KLTag(meaning="kl_ref", key="kl", estimator="k3", unit="nats/token")
K1 = KLTag(meaning="kl_ref", key="kl", estimator="k1", unit="nats/token")
