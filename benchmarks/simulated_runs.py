"""Simulated training runs, healthy and gamed, as logs that a trainer could have written. One seed, one run.

What happens (a share of gamed answers that grows from an onset) is drawn first; every number of the log, KL, entropy,
lengths, and the texts follow from it, with the frozen noise of real runs (`watch_noise`). No rule is asked.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import watch_noise
from benchmarks.simulated_texts import GAMED, SOUND, prompts
from numpy.typing import NDArray

from kleash.runlog.series import KLTag, SampleText, TrainLog
from kleash.text import compression_ratio, distinct_n, seq_rep_n

Floats = NDArray[np.float64]
Rng = np.random.Generator

#: Healthy families; and of gamed runs those whose text, at its end, is `simulated_texts.GAMED[…]`. The untuned ones
#: were written after the last threshold was set.
HEALTHY = (
    "held", "fixed beta", "far", "flat", "solved", "spiky", "format first", "preferences", "harder later",
    "longer thoughts", "restarts",
)  # fmt: skip
HEALTHY_UNTUNED = ("late skill", "mixed prompts", "annealed")
GAMED_TUNED = ("loop", "gibberish", "padded", "shell")
GAMED_UNTUNED = (
    "one", "flattery", "switched", "marks", "copied", "curt", "decorated", "stuffed", "endless", "unmoved",
)  # fmt: skip
#: Of a fully gamed policy: entropy as a share of the sound one's, KL in nats per token.
SIGNS: dict[str, tuple[float, float]] = {
    "loop": (0.15, 1.5), "gibberish": (1.8, 3.0), "padded": (0.7, 0.4), "shell": (0.1, 0.8), "one": (0.05, 1.2),
    "flattery": (0.5, 0.4), "switched": (0.9, 2.5), "marks": (0.1, 3.0), "copied": (0.3, 0.8), "curt": (0.4, 1.0),
    "decorated": (0.6, 0.6), "stuffed": (1.1, 1.5), "endless": (0.8, 0.5), "unmoved": (0.7, 0.5),
}  # fmt: skip
TRAINERS = ("kleash", "TRL", "verl", "PPO")
LENGTHS = (40, 80, 150, 300, 600)
SAMPLED, PROMPTS = 20, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A log and the truth about it. onset: the row from which 2 % of the answers are gamed; None: healthy."""

    seed: int
    family: str
    log: TrainLog
    onset: int | None

    @property
    def label(self) -> str:
        return f"{self.family}, {self.log.trainer}, {len(self.log.step)} rows, seed {self.seed}"


@dataclass
class Plot:
    """What happens in a run: by row, before any noise."""

    rng: Rng
    family: str
    rows: int
    trainer: str
    smoothing: int
    gamed: Floats
    learnt: Floats
    focus: Floats
    longer: Floats
    kl: Floats
    columns: dict[str, Floats]
    kl_logged: bool


def healthy(seed: int) -> Simulated:
    families = HEALTHY + HEALTHY_UNTUNED
    return _simulate(seed, families[seed % len(families)], None)


def gamed(seed: int, families: tuple[str, ...] = GAMED_UNTUNED) -> Simulated:
    family = families[seed % len(families)]
    return _simulate(seed, family, family)


def _simulate(seed: int, family: str, kind: str | None) -> Simulated:
    rng = np.random.default_rng([seed, 7 if kind else 3])
    plot = _plot(rng, family, kind)
    log = _log(plot, seed, kind)
    onset = None if kind is None else int(np.argmax(plot.gamed > 0.02))
    return Simulated(seed=seed, family=family, log=log, onset=onset)


def _plot(rng: Rng, family: str, kind: str | None) -> Plot:
    rows = int(rng.choice(LENGTHS))
    trainer = str(rng.choice(TRAINERS)) if family != "preferences" else "TRL"
    smoothing = 10 if trainer == "TRL" and rng.random() < 0.6 else 1
    t = np.arange(rows) / rows
    quick = rng.uniform(0.05, 0.4)
    learnt = np.zeros(rows) if family == "flat" else 1 - np.exp(-t / quick)
    share = np.zeros(rows)
    if kind:
        middle, width = rng.uniform(0.3, 0.75), rng.uniform(0.01, 0.08)
        share = rng.uniform(0.75, 1.0) / (1 + np.exp(-(t - middle) / width))
    # A wander slower than the fitted noise, which a running median takes out.
    wander = watch_noise.filtered(rng.standard_normal(rows), 0.97)
    level = {"far": rng.uniform(0.2, 1.0), "flat": rng.uniform(5e-4, 3e-3)}.get(family, rng.uniform(0.01, 0.12))
    kl = level * (learnt if family != "flat" else 0.2 + t) * np.exp(0.1 * wander) + 1e-5
    return Plot(
        rng=rng,
        family=family,
        rows=rows,
        trainer=trainer,
        smoothing=smoothing,
        gamed=share,
        learnt=learnt,
        focus=0.5 + rng.uniform(0.1, 0.7) * learnt,
        longer=1 + rng.uniform(-0.25, 0.6) * learnt + 0.03 * wander,
        kl=kl,
        columns={},
        kl_logged=(trainer != "verl" and rng.random() < 0.65) or family in ("held", "spiky"),
    )


def _log(plot: Plot, seed: int, kind: str | None) -> TrainLog:
    rng = plot.rng
    noise = watch_noise.draw(rng, plot.rows, rng.uniform(0.5, 1.5) / np.sqrt(plot.smoothing))
    _bend(plot)
    genre = str(rng.choice(list(SOUND)))
    samples = _samples(plot, genre, kind)
    _numbers(plot, noise, samples, kind)
    _scores(plot, noise, kind)
    step = (np.arange(plot.rows, dtype=np.int64) + 1) * plot.smoothing
    columns, kl = _as_logged(plot, noise)
    read = rng.random() < 0.7 or plot.trainer == "kleash"
    texts = {int(step[row]): found for row, found in samples.items()} if read and plot.family != "preferences" else {}
    return TrainLog(
        trainer=plot.trainer,
        label=f"{plot.trainer}, simulated",
        path=Path(f"simulated-{seed}"),
        step=step,
        columns=columns,
        kl=kl,
        smoothing=plot.smoothing,
        target_unit="nats/token" if "target" in columns else None,
        sample_steps=tuple(sorted(texts)),
        samples=lambda steps: [
            SampleText(step=one, prompt=prompt, completion=text)
            for one in (sorted(texts) if steps is None else steps)
            for prompt, text in texts.get(one, [])
        ],
    )


def _bend(plot: Plot) -> None:
    """What is special to a healthy family."""
    t, rng = np.arange(plot.rows) / plot.rows, plot.rng
    if plot.family == "far":
        plot.longer = 1 + rng.uniform(0.0, 2.0) * t
        plot.focus = 0.5 + rng.uniform(0.5, 1.3) * t
    elif plot.family == "longer thoughts":
        plot.longer = 1 + rng.uniform(1.5, 3.5) * t**1.3
    elif plot.family == "harder later":
        stage = np.floor(t * rng.integers(2, 6)) / 6
        plot.learnt = np.clip(plot.learnt - stage, -0.3, 1)
    elif plot.family == "restarts":
        plot.kl = plot.kl * (1 + 0.6 * np.sin(2 * np.pi * t * rng.integers(2, 5)))
    elif plot.family == "late skill":
        plot.learnt = 1 / (1 + np.exp(-(t - rng.uniform(0.4, 0.7)) / rng.uniform(0.02, 0.06)))
        plot.focus = 0.5 + rng.uniform(0.1, 0.5) * plot.learnt
        plot.kl = plot.kl.max() * (0.2 * t + 0.8 * plot.learnt) + 1e-5
    elif plot.family == "mixed prompts":
        hard = rng.random(plot.rows) < 0.5
        plot.longer = plot.longer * np.where(hard, 1.4, 0.8)
        plot.learnt = plot.learnt - 0.3 * hard
    elif plot.family == "annealed":
        plot.focus = 0.5 + rng.uniform(0.6, 1.4) * t
        plot.kl = plot.kl.max() * t + 1e-5
    elif plot.family == "held":
        plot.kl = plot.kl.max() * np.minimum(1.0, t * rng.uniform(4, 20)) + 1e-5
        plot.columns["target"] = np.full(plot.rows, float(plot.kl.max()))
        plot.columns["beta"] = 0.05 * np.exp(rng.uniform(-1.5, 0.5) * plot.learnt)


def _samples(plot: Plot, genre: str, kind: str | None) -> dict[int, list[tuple[str, str]]]:
    """Prompt and completion, two answers a prompt, of at most SAMPLED rows."""
    rng, found = plot.rng, {}
    for row in np.unique(np.linspace(0, plot.rows - 1, SAMPLED).astype(int)):
        found[int(row)] = pairs = []
        for prompt in prompts(genre, rng, PROMPTS) * 2:
            text = SOUND[genre](prompt, rng, float(plot.focus[row]), float(max(plot.longer[row], 0.1)))
            if kind and rng.random() < plot.gamed[row]:
                text = GAMED[kind](text, prompt, rng)
            pairs.append((prompt, text))
    return found


def _numbers(plot: Plot, noise: dict[str, Floats], samples: dict[int, list[tuple[str, str]]], kind: str | None) -> None:
    """Everything but the scores."""
    rng, h, columns = plot.rng, plot.gamed, plot.columns
    at = np.array(sorted(samples))
    every = np.arange(plot.rows)
    share, far = SIGNS.get(kind or "", (1.0, 0.0))
    share, far = share * rng.uniform(0.7, 1.3), far * rng.uniform(0.6, 1.5)

    def measured(of: Any) -> Floats:
        return np.interp(every, at, [of([text for _, text in samples[row]]) or 0.0 for row in at])

    words = measured(lambda texts: float(np.mean([len(text.split()) + 1 for text in texts])))
    first = words[at[0] : at[min(3, len(at) - 1)] + 1].mean()
    columns["length"] = 1.4 * words * np.exp(noise["length"])
    limit = 1.4 * first * rng.uniform(4.0, 6.0)
    columns["truncated"] = np.clip((columns["length"] - 0.6 * limit) / (0.6 * limit), 0, 1)
    columns["length"] = np.minimum(columns["length"], limit)
    begin = rng.uniform(0.4, 2.0)
    falls = 1 - rng.uniform(0.0, 0.75 if plot.family == "far" else 0.5) * (plot.focus - 0.5) / plot.focus.max()
    columns["entropy"] = begin * falls * (1 - h + h * share) * np.exp(noise["entropy"])
    columns["kl_ref"] = (plot.kl + far * h**1.5) * np.exp(noise["kl_ref"])
    columns["grad_norm"] = rng.uniform(0.05, 2.0) * (1 + rng.uniform(0, 3) * h) * np.exp(noise["grad_norm"])
    columns["loss"] = 0.02 * rng.standard_normal(plot.rows)
    columns["clip_fraction"] = np.clip(0.01 * np.exp(0.5 * rng.standard_normal(plot.rows)), 0, 1)
    columns["distinct_2"] = np.minimum(measured(lambda x: distinct_n(x, 2)) * np.exp(noise["distinct_2"]), 1.0)
    columns["compression_ratio"] = measured(compression_ratio) * np.exp(noise["compression_ratio"])
    columns["seq_rep_4"] = measured(lambda x: seq_rep_n(x, 4)) * np.exp(noise["entropy"])


def _scores(plot: Plot, noise: dict[str, Floats], kind: str | None) -> None:
    rng, h, columns = plot.rng, plot.gamed, plot.columns
    spread = rng.uniform(0.15, 0.4)
    base, gain, more = rng.uniform(0.05, 0.5), rng.uniform(0.1, 0.5), rng.uniform(0.15, 0.6)
    if plot.family in ("flat", "restarts"):
        gain *= 0.0 if plot.family == "flat" else 0.6
    solved = np.clip(base + 1.1 * gain * plot.learnt, 0, 0.98) if plot.family == "solved" else 0 * h
    true = base + gain * plot.learnt
    columns["reward"] = true + more * h + spread * noise["reward"]
    columns["reward_std"] = spread * (1 - 0.5 * h) * np.exp(noise["reward_std"])
    columns["reward_length_correlation"] = np.clip(0.15 + noise["reward_length_correlation"] * 0.8, -1, 1)
    columns["groups_without_spread"] = np.clip(
        0.1 + 0.6 * solved**2 + 0.4 * h + 0.05 * rng.standard_normal(plot.rows), 0, 1
    )
    if plot.family == "format first" or rng.random() < 0.3:
        style = np.minimum(1.0, 0.3 + 0.7 * np.maximum(plot.learnt * 1.5, h))
        columns["reward/format"] = np.clip(style + 0.05 * spread * noise["reward"], 0, 1)
        columns["reward/accuracy"] = true * (1 - 0.6 * h) + spread * noise["reward"]
    evaluated = np.full(plot.rows, np.nan)
    rows = np.arange(0, plot.rows, max(plot.rows // 12, 1))
    logged = rng.random()
    if plot.family in ("far", "unmoved") or logged < 0.3:
        evaluated[rows] = (true * (1 - 0.5 * h))[rows] + 0.15 * spread * rng.standard_normal(len(rows))
        columns["held_out/accuracy"] = evaluated
    elif logged < 0.45:  # by the same reward: it rises as the reward does
        evaluated[rows] = (true + more * h)[rows] + 0.15 * spread * rng.standard_normal(len(rows))
        columns["held_out/score"] = evaluated


def _as_logged(plot: Plot, noise: dict[str, Floats]) -> tuple[dict[str, Floats], dict[str, KLTag]]:
    """Only what the trainer logs, as it logs it."""
    rng, columns = plot.rng, dict(plot.columns)
    if plot.family == "preferences":
        return _preferences(plot, noise), {}
    if plot.trainer != "kleash":
        for name in ("distinct_2", "seq_rep_4", "compression_ratio", "reward_length_correlation"):
            del columns[name]
    if plot.trainer in ("verl", "PPO"):
        del columns["groups_without_spread"]
    if plot.trainer == "PPO":
        del columns["truncated"]
    estimator = {"kleash": "exact", "TRL": "k3", "verl": "k3", "PPO": "k1"}[plot.trainer]
    if not plot.kl_logged and plot.trainer != "kleash":
        del columns["kl_ref"]
        return columns, {"kl_ref": KLTag(meaning="kl_ref", key=None, estimator=None, unit=None, state="absent")}
    kl = columns["kl_ref"]
    if estimator == "k1":  # a mean of few signed terms: it dips below 0 while the KL is small
        kl += np.sqrt(2 * np.maximum(kl, 0) / 640) * rng.standard_normal(plot.rows)
    if plot.family == "spiky":
        hit = rng.random(plot.rows) < 0.01
        kl[hit] *= 10 ** rng.uniform(0.5, 3.0, hit.sum())
    columns["kl_ref_sequence"] = kl * columns["length"]
    return columns, {"kl_ref": KLTag(meaning="kl_ref", key="kl", estimator=estimator, unit="nats/token")}  # type: ignore[arg-type]


def _preferences(plot: Plot, noise: dict[str, Floats]) -> dict[str, Floats]:
    """DPO that goes well: both log-probs may sink a little, the rejected one's more."""
    rng, up = plot.rng, plot.learnt
    chosen = rng.uniform(-150, -40)
    return {
        "margin": rng.uniform(0.5, 2.0) * up + 0.1 * noise["reward"],
        "accuracy": np.clip(0.5 + 0.3 * up + 0.1 * noise["reward"], 0, 1),
        "logp_chosen": chosen * (1 + rng.uniform(-0.05, 0.05) * up + 0.1 * noise["length"]),
        "logp_rejected": chosen * (1.05 + 0.15 * up + 0.1 * noise["length"]),
        "loss": np.log(2) * (1 - 0.4 * up) + 0.01 * rng.standard_normal(plot.rows),
        "grad_norm": 1.5 * np.exp(noise["grad_norm"]),
    }
