"""Run directories made up for the report's tests, written through the run log as a run writes them."""

import math
from pathlib import Path
from typing import Any

from kleash.records import Reading, Step, Unit
from kleash.runlog import Checkpoint, Event, Notice, RunEnd, RunStart, Sample, Writer

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'`"

CONFIG: dict[str, Any] = {
    "out": "runs/made",
    "model": {"policy": "kleash:tiny", "reference": "start", "dtype": "float32"},
    "data": {"prompts": "prompts.jsonl", "column": "prompt"},
    "rewards": [{"use": "vader", "weight": 1.0}, {"use": "./r.py:kind", "weight": 0.5, "name": 'a "b"\\c'}],
    "algorithm": {"kind": "rloo", "group_size": 8},
    "kl": {"penalty": {"kind": "exact"}, "target": "4 nats/sequence", "controller": {"kind": "pi", "kp": 1.0}},
    "train": {"steps": 120, "seed": 7, "learning_rate": 1e-05, "adam_betas": [0.9, 0.95]},
}


def reading(value: float, unit: Unit = "nats/sequence", error: float | None = None) -> Reading:
    return Reading(
        kind="kl_ref",
        value=value,
        unit=unit,
        estimator="exact",
        n_prompts=8,
        n_sequences=64,
        n_tokens=1300,
        standard_error=value * 0.06 if error is None else error,
        q95=value * 2.1,
    )


def step(number: int, of: int, **changes: Any) -> Step:
    """A step of a run that settles on 4 nats, with a wobble."""
    t = number / of
    wobble = math.sin(number * 1.7) * 0.25 + math.sin(number * 0.61) * 0.2
    kl = 4 * (1 - math.exp(-6 * t)) * (1 + 0.5 * math.exp(-3 * t)) + wobble * min(1.0, 4 * t) + 0.01
    fields: dict[str, Any] = {
        "step": number,
        "beta": 0.05 * (1 + 2 * math.exp(-5 * t)),
        "kl_ref": reading(kl),
        "kl_ref_token": reading(kl / 20, "nats/token"),
        "target": "4 nats/sequence",
        "price": 0.2 * math.exp(-3 * t) + 0.03 + 0.05 * wobble,
        "score": 0.15 + 0.6 * (1 - math.exp(-5 * t)) + 0.05 * wobble,
        "scores": {"vader": 0.1 + 0.7 * (1 - math.exp(-5 * t)), "kind": 0.5 + 0.1 * wobble},
        "entropy": 2.4 - 0.6 * t + 0.05 * wobble,
        "length": 21 + 2 * wobble,
        "distinct_1": 0.4 - 0.05 * t,
        "distinct_2": 0.66 - 0.08 * t + 0.02 * wobble,
        "seq_rep_4": 0.003 + 0.002 * t,
        "compression_ratio": 2.6 + 0.3 * t,
        "bits_per_byte": 1.1 - 0.2 * t,
        "truncated": 0.02,
        "groups_without_spread": 0.0,
        "grad_norm": 0.8 + 0.2 * wobble,
        "kl_sampler": reading(2e-6, "nats/token"),
        "seconds": {"sample": 0.4, "total": 0.75},
        "peak_memory_gb": 0.61,
    }
    return Step(**(fields | changes))


def write_run(folder: Path, events: list[Event], samples: list[Sample] | None = None) -> Path:
    with Writer(folder / "events.jsonl") as writer:
        for event in events:
            writer.write(event)
    if samples is not None:
        with Writer(folder / "samples.jsonl") as writer:
            for sample in samples:
                writer.write(sample)
    return folder


def made_run(folder: Path, steps: int = 40, **changes: Any) -> Path:
    """A whole run with everything in it, hostile text included."""
    start = RunStart(
        config=CONFIG,
        started="2026-01-02T03:04:05+00:00",
        versions={"kleash": "0.1.0", "torch": "2.9.1"},
        fingerprints={"reference": {"weights": "4f1c" * 16, "dtype": "float32", "adapter": None}},
        argv=["kleash", "train", "run.toml"],
    )
    events: list[Event] = [start, Notice(what="preflight", text=f"reference checked {EVIL}")]
    events += [step(n, steps, **changes) for n in range(steps)]
    events += [Checkpoint(step=steps, path=f"checkpoints/step-{steps:06d}"), RunEnd(reason="finished", step=steps)]
    return write_run(folder, events, made_samples(steps))


def made_samples(steps: int) -> list[Sample]:
    texts = {
        "The film was": [" long and the seats were hard.", " good, mostly.", " lovely, and the music was wonderful."],
        "Dinner at the station": [" came late and cold.", " was fine.", " was a delight; the soup was great."],
        f"A prompt {EVIL}": [f" one {EVIL}", " two", " three"],
    }
    return [
        Sample(step=number, prompt=prompt, completion=said, score=0.1 + i / 3, kl_ref=0.1 + 2 * i, length=9)
        for i, number in enumerate((0, steps // 2, steps - 1))
        for prompt, completions in texts.items()
        for said in (completions[i], "never shown: the second of its group")
    ]
