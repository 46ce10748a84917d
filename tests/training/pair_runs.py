"""Runs of `kleash dpo` small enough for a test: a random two-layer model, pairs of a few words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.models import build

from kleash.runlog.offline import PairEvaluation
from kleash.training.offline.dpo_config import DPOConfig
from kleash.training.offline.run import OfflineRun
from kleash.training.toml import parse


def rows(count: int) -> list[dict[str, Any]]:
    """Even words are preferred to odd ones; prompts and answers of several lengths. None has t2, the end token."""
    return [
        {
            "prompt": " ".join(f"t{3 + (i * 7 + j) % 16}" for j in range(1 + i % 4)),
            "chosen": " " + " ".join(f"t{4 + 2 * ((i + j) % 7)}" for j in range(1 + i % 3)),
            "rejected": " " + " ".join(f"t{5 + 2 * ((i + j) % 7)}" for j in range(1 + i % 5)),
        }
        for i in range(count)
    ]


def settings(directory: Path, **changes: Any) -> DPOConfig:
    """changes: dotted names with __."""
    model = directory / "model"
    if not model.exists():
        build.checkpoint(model, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
        made = rows(18)
        (directory / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made[:12]))
        (directory / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made[12:]))
    tree: dict[str, Any] = {
        "out": str(directory / "run"),
        "model": {"policy": str(model)},
        "data": {"pairs": str(directory / "pairs.jsonl"), "held_out": str(directory / "held.jsonl")},
        "kl": {"prompts": 4},
        "train": {"epochs": 3, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 3, "warmup_updates": 1},
    }
    for name, value in changes.items():
        node, *keys = tree, *name.split("__")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return parse(tree, DPOConfig)


def plain(run: OfflineRun) -> list[Any]:
    """Its records, without what measures the machine."""
    return [replace(step, seconds=None, tokens_per_second=None, peak_memory_gb=None) for step in run.steps]


def steps(run: OfflineRun) -> list[Any]:
    return run.steps


def judged(run: OfflineRun) -> list[Any]:
    return [replace(event, seconds=None) for event in run.evaluations if isinstance(event, PairEvaluation)]
