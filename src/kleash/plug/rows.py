"""A trainer's logged numbers as kleash's records."""

import math
from typing import Any

from kleash.records import Step
from kleash.runlog.offline import PairStep
from kleash.runlog.schema import Evaluation

_STEP = {
    "score": ("reward",),
    "score_std": ("reward_std",),
    "groups_without_spread": ("frac_reward_zero_std",),
    "entropy": ("entropy",),
    "length": ("completions/mean_length",),
    "truncated": ("completions/clipped_ratio",),
    "loss": ("loss",),
    "grad_norm": ("grad_norm",),
    "clip_fraction": ("clip_ratio/region_mean", "clip_ratio"),
    "learning_rate": ("learning_rate",),
    "sampler_ratio_max": ("sampling/importance_sampling_ratio/max",),
}
_PAIR = {
    "loss": "loss", "accuracy": "rewards/accuracies", "reward_margin": "rewards/margins",
    "reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected", "logprob_chosen": "logps/chosen",
    "logprob_rejected": "logps/rejected", "entropy": "entropy", "grad_norm": "grad_norm",
    "learning_rate": "learning_rate", "epoch": "epoch",
}  # fmt: skip


def record(logs: dict[str, Any], step: int, beta: float | None) -> Step | PairStep | Evaluation | None:
    """The row after `step` updates as a record; None for one that is no step's (a summary, a speed)."""
    if "train_runtime" in logs:
        return None
    if "eval_reward" in logs:
        return Evaluation(
            step=step, how="the trainer's own evaluation", n_prompts=0, n_samples=0, score=_number(logs, "eval_reward"),
            scores=_rewards(logs, "eval_rewards/"),
        )  # fmt: skip
    if "rewards/margins" in logs:
        pairs: dict[str, Any] = {ours: _number(logs, theirs) for ours, theirs in _PAIR.items()}
        return PairStep(step=step - 1, beta=beta, **pairs)
    if "loss" not in logs and "reward" not in logs:
        return None
    found: dict[str, Any] = {ours: _first(logs, keys) for ours, keys in _STEP.items()}
    return Step(step=step - 1, beta=beta or 0.0, scores=_rewards(logs, "rewards/"), **found)


def _first(logs: dict[str, Any], keys: tuple[str, ...]) -> float | None:
    return next((value for key in keys if (value := _number(logs, key)) is not None), None)


def _number(logs: dict[str, Any], key: str) -> float | None:
    value = logs.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _rewards(logs: dict[str, Any], prefix: str) -> dict[str, float | None]:
    """rewards/NAME/mean → {NAME: …}."""
    return {
        key[len(prefix) : -len("/mean")]: _number(logs, key)
        for key in logs
        if key.startswith(prefix) and key.endswith("/mean")
    }
