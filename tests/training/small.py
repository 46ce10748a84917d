"""Runs small enough for a test: a random two-layer model with a word for each token, and rewards in a file."""

import json
from pathlib import Path
from typing import Any

from tests.models import build

from kleash.records import Step
from kleash.runlog import Event, last_of_each_step, read

#: Fields of a step record that measure the machine, not the run.
OF_THE_MACHINE = ("seconds", "tokens_per_second", "peak_memory_gb")

REWARDS = """
import os, random, signal, time
import numpy as np

def mixed(prompts, completions, **columns):
    # The share of even words, and noise from numpy's global generator, which a resume must restore.
    return [sum(int(w[1:]) % 2 == 0 for w in c.split()) / 8 + 0.1 * np.random.normal() for c in completions]

def chance(prompts, completions, **columns):
    # The same with Python's: for a run of its own, since the type checks of a test draw from that generator too.
    return [sum(int(w[1:]) % 2 == 0 for w in c.split()) / 8 + 0.1 * random.random() for c in completions]

def even(completions, **columns):
    return [sum(int(w[1:]) % 2 == 0 for w in c.split()) / 8 for c in completions]

def some(completions, **columns):
    return [None if i % 3 == 0 else len(c) / 20 for i, c in enumerate(completions)]

def easy(prompts, completions, **columns):
    # Spread for every group but those of prompts with the word t7.
    return [0.0 if "t7" in p else float(i) for i, p in enumerate(prompts)]

def flat(completions, **columns):
    return [1.0] * len(completions)

def nothing(completions, **columns):
    return [None] * len(completions)

def nan(completions, **columns):
    return [float("nan")] * len(completions)

def short(completions, **columns):
    return [0.0]

calls = 0

def fails_later(completions, **columns):
    # The first call is the trial before the first step.
    global calls
    calls += 1
    if calls > 3:
        raise ValueError("the judge is out")
    return even(completions)

def hangs(completions, **columns):
    time.sleep(60)

def presses_ctrl_c(completions, **columns):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return even(completions)
"""


def settings(directory: Path, **changes: Any) -> dict[str, Any]:
    """A config as plain values, with everything it names written below `directory`. changes: dotted names with __."""
    model, rewards, prompts = directory / "model", directory / "rewards.py", directory / "prompts.txt"
    if not model.exists():
        build.checkpoint(model, hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1)
        rewards.write_text(REWARDS)
        prompts.write_text("".join(f"t{3 + i} t{5 + i}{' t7' * (i % 3)}\n" for i in range(6)))
    tree: dict[str, Any] = {
        "out": str(directory / "run"),
        "model": {"policy": str(model)},
        "data": {"prompts": str(prompts)},
        "rewards": [{"use": f"{rewards}:mixed"}],
        "algorithm": {"kind": "grpo", "group_size": 4},
        "kl": {"target": "0.5 nats/sequence"},
        "train": {
            "steps": 4,
            "prompts_per_step": 3,
            "max_new_tokens": 8,
            "learning_rate": 1e-3,
            "checkpoint_every": 2,
            "warmup_updates": 1,
        },
    }
    for name, value in changes.items():
        node, *keys = tree, *name.split("__")
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return tree


def toml(directory: Path, **changes: Any) -> Path:
    """The same as a TOML file (JSON's strings, lists and numbers are TOML's)."""
    tree = settings(directory, **changes)
    lines = [f"out = {json.dumps(tree.pop('out'))}"]
    for reward in tree.pop("rewards"):
        lines += ["[[rewards]]", *(f"{key} = {json.dumps(value)}" for key, value in reward.items())]
    for section, table in tree.items():
        lines += [f"[{section}]", *(f"{key} = {_inline(value)}" for key, value in table.items())]
    path = directory / "run.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def steps(run: Path) -> list[Step]:
    return last_of_each_step(read(run / "events.jsonl"))


def events(run: Path, kind: type[Event]) -> list[Any]:
    return [event for event in read(run / "events.jsonl") if isinstance(event, kind)]
