"""Real runs of ours that went well and that gamed their reward, as the monitor sees them."""

from pathlib import Path
from typing import Any

from benchmarks.runs import planned

from kleash.demo.side_by_side import Planned

OUT = Path("runs/bench-watch")
STEPS, EVERY = 100, 10
VADER, GOLD = [{"use": "vader"}], [{"use": "kleash.demo.gold:gold"}]
NONE: dict[str, Any] = {"kl": {"penalty": "none"}}
#: Name → (what the run is meant to be, what differs from the demo's settings, seeds). What a run is, its text says.
CELLS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "no leash": ("hacked", NONE, (0, 1, 2)),
    "beta 0.002": ("hacked", {"kl": {"beta": 0.002}}, (0, 1)),
    "praise, no leash": ("hacked", {"rewards": [{"use": "benchmarks.praise:praise"}], **NONE}, (0, 1)),
    "long, no leash": ("hacked", {"rewards": [{"use": "benchmarks.wrong_rewards:long"}], **NONE}, (0, 1)),
    "loud, no leash": ("hacked", {"rewards": [{"use": "benchmarks.wrong_rewards:loud"}], **NONE}, (0,)),
    "themed, no leash": ("hacked", {"rewards": [{"use": "benchmarks.wrong_rewards:themed"}], **NONE}, (0,)),
    "short, no leash": ("hacked", {"rewards": [{"use": "benchmarks.wrong_rewards:short"}], **NONE}, (0,)),
    "RLOO, 64 nats": ("hacked", {"algorithm": {"kind": "rloo"}, "kl": {"target": "64 nats/sequence"}}, (0,)),
    "PPO, no leash": ("hacked", {"algorithm": {"kind": "ppo"}, **NONE}, (0,)),
    "GRPO, 4 nats": ("healthy", {"kl": {"target": "4 nats/sequence"}}, (0, 1, 2)),
    "RLOO, 2 nats": ("healthy", {"algorithm": {"kind": "rloo"}, "kl": {"target": "2 nats/sequence"}}, (0, 1)),
    "PPO, 4 nats": ("healthy", {"algorithm": {"kind": "ppo"}, "kl": {"target": "4 nats/sequence"}}, (0, 1)),
    "beta 0.2": ("healthy", {"kl": {"beta": 0.2}}, (0, 1)),
    "true reward, no leash": ("healthy", {"rewards": GOLD, **NONE}, (0, 1, 2)),
    "crawling, no leash": ("healthy", {"learning_rate": 2e-5, **NONE}, (0,)),
}


def run(cell: str, seed: int) -> Planned:
    name = f"{cell} seed {seed}"
    changed = dict(CELLS[cell][1])
    made = planned(OUT / name.replace(" ", "-").replace(",", ""), name, steps=STEPS, seed=seed, **changed)
    train = made.config["train"] | {"checkpoint_every": EVERY, "keep": "all"}
    return Planned(label=name, config=made.config | {"train": train})


RUNS = [run(cell, seed) for cell, (_, _, seeds) in CELLS.items() for seed in seeds]

if __name__ == "__main__":
    import sys

    from benchmarks.runs import train_missing

    train_missing(RUNS, 2)
