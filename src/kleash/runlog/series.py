"""A training log of any trainer, in one vocabulary: what importers make and the monitor reads. Needs numpy, no torch.

Columns have fixed names (below) and units; what a log does not have is no column, so "absent", "logged as NaN" and
"measured 0" stay three things.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kleash.records import Estimator, Unit

Column = NDArray[np.float64]

#: What a column of `TrainLog` means. Names with "/" at their end stand for a family: "reward/format", "held_out/math".
COLUMNS: dict[str, str] = {
    "kl_ref": "KL of policy and reference, nats per token",
    "kl_ref_sequence": "the same, nats per sequence",
    "kl_ref/": "further measurements of it by their key, in the tag's unit; so for kl_old/ and kl_sampler/",
    "kl_origin": "KL of policy and the first reference, where the reference moves, nats per token",
    "kl_old": "size of an update: old policy against new, nats per token",
    "kl_sampler": "mismatch of sampler and trainer, nats per token",
    "kl_kto": "KTO's batch baseline, nats per sequence",
    "beta": "strength of the KL penalty",
    "target": "KL target in force, in the unit of `TrainLog.target_unit`",
    "reward": "mean total score of the samples, without the KL",
    "reward_std": "its spread over the samples",
    "reward/": "mean of one reward by name",
    "held_out/": "a score on held-out prompts by name (in the rows that have one)",
    "gold/": "a score that is known to be true, where a run logs one",
    "groups_without_spread": "share of prompt groups whose scores are all equal",
    "reward_length_correlation": "Pearson correlation of score and length over a step's samples",
    "entropy": "mean entropy of the policy's next token, nats",
    "length": "mean tokens of a completion",
    "truncated": "share of completions cut at the limit",
    "clip_fraction": "share of tokens that the surrogate clipped",
    "grad_norm": "gradient norm before clipping",
    "loss": "the training loss",
    "learning_rate": "the step's learning rate",
    "distinct_1": "distinct words / words",
    "distinct_2": "distinct word pairs / word pairs",
    "seq_rep_4": "share of repeated word 4-grams within a sample",
    "compression_ratio": "bytes of the samples / bytes after zlib",
    "explained_variance": "of the value head",
    "importance_max": "largest importance ratio of a step",
    "margin": "DPO: mean reward margin of chosen over rejected",
    "accuracy": "DPO: share of pairs whose chosen is ahead",
    "logp_chosen": "DPO: mean log-prob of the chosen answers, nats per sequence",
    "logp_rejected": "DPO: mean log-prob of the rejected answers, nats per sequence",
}

KLMeaning = Literal["kl_ref", "kl_old", "kl_sampler", "kl_kto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KLTag:
    """What one of a log's KL series is. None: the log does not tell.

    key: its name in the log. unit: as logged (columns are normalised). clamp: the bound that the trainer cuts it to,
    in nats per token. state: "measured"; "absent" (no such key); "logged as 0" (a trainer that writes 0 where it
    measures nothing); "NaN" (never a number). note: a sentence for the reader: what its gradient is, its traps.
    """

    meaning: KLMeaning
    key: str | None
    estimator: Estimator | None
    unit: Unit | None
    clamp: float | None = None
    state: Literal["measured", "absent", "logged as 0", "NaN"] = "measured"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleText:
    """One sample of a step."""

    step: int
    prompt: str
    completion: str
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedModel:
    """A checkpoint directory of the run. step: updates done before it."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainLog:
    """One run.

    trainer: "TRL", "kleash", …; label: for people, "TRL 1.16 GRPO". step [n]: rising, the last of a repeated step
    counts. columns: each [n], NaN where a row has no number. smoothing: over how many steps the trainer averages a row.
    target_unit: of the column `target`. config: the run's settings, where the log tells them. ended: why the run is
    over; None: it goes on, or the log does not say. notes: what the reader must know (repeated steps dropped, a torn
    last line, …). samples(steps=None): those of some or all steps, read when asked. sample_steps: which have some.
    sample_marks: as long as a step's is the same, so are its samples; a step without one says nothing.
    """

    trainer: str
    label: str
    path: Path
    step: NDArray[np.int64]
    columns: dict[str, Column]
    kl: dict[str, KLTag]
    smoothing: int = 1
    target_unit: Unit | None = None
    config: dict[str, Any] = field(default_factory=dict)
    checkpoints: tuple[SavedModel, ...] = ()
    sample_steps: tuple[int, ...] = ()
    sample_marks: Mapping[int, Hashable] = field(default_factory=dict)
    samples: Callable[[tuple[int, ...] | None], list[SampleText]] = lambda steps: []
    ended: str | None = None
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> Column | None:
        """The column, or None where the log has none or it never holds a number."""
        found = self.columns.get(name)
        return None if found is None or not np.isfinite(found).any() else found

    def family(self, prefix: str) -> dict[str, Column]:
        """Columns of one family: family("reward/") → {"format": …}."""
        return {name[len(prefix) :]: values for name, values in self.columns.items() if name.startswith(prefix)}
