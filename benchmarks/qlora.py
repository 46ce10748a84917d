"""What a base in few bits saves, costs and keeps: docs/runs/qlora.md.

    python -m benchmarks.qlora [--rounds 3] [--out runs/bench-qlora] > docs/runs/qlora.md

SmolLM2-135M with a LoRA adapter over its base as it is, in 8 bits and in 4: bytes, the time of sampling and of an
update (in turn, as ratios), the KL that rounding makes. And a target held on the tiny model over each.
"""

import argparse
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.fused import measure
from benchmarks.leash import held
from benchmarks.runs import machine, planned, table, train_missing
from benchmarks.sampler import draw_prompts, ours
from benchmarks.shared_prompt import frozen, rollout, update

from kleash.masked import masked_mean
from kleash.models import ledger
from kleash.models.load import Loaded, load
from kleash.models.spec import Adapter, ModelSpec
from kleash.tensors import Rollout
from kleash.training.run import Run

MODEL, RANK, STEPS, TARGET = "kleash:smollm2", 16, 90, "4 nats/sequence"
WAYS: dict[str, Any] = {"as it is, fp32": None, "8 bits": "8bit", "4 bits": "4bit"}
WHOLE = next(iter(WAYS))

PAGE = """\
# A base in few bits

Made by `python -m benchmarks.qlora > docs/runs/qlora.md` (`make bench-qlora`).

{machine}

## What it saves and costs: SmolLM2-135M

A fresh LoRA adapter of rank {rank}; what is not quantised (embedding, head, norms) is fp32. Times are those of 2
prompts of 64 tokens × 8 completions of 32, as multiples of those over the base as it is, medians of {rounds} rounds in
turn. An update is forward and backward with the exact KL. *KL of rounding*: KL(base as stored‖quantised) on a fixed
text. *Floor*: the KL between two exact ways (packed, plain) through the same weights. Nats per token.

{costs}

## The leash over it: the tiny model

GRPO, LoRA of rank {rank}, learning rate 5e-3, {steps} steps, the demo's prompts and reward, seed 0; means of the last
third.

{leash}
"""


def costs(rounds: int) -> str:
    models = {way: load(ModelSpec(MODEL, device="cpu", adapter=Adapter(rank=RANK), quantize=WAYS[way])) for way in WAYS}
    work, prompts = rollout(2, 8, 64, 32), draw_prompts(64)
    sampling = measure({way: ours(own.policy, prompts, 0) for way, own in models.items()}, rounds)
    updates = measure(
        {way: partial(update, own.policy, work, frozen(own.policy, work), "packed") for way, own in models.items()},
        rounds,
    )
    heads = ["base", "frozen weights", "of them linear layers", "KL of rounding", "floor", "sampling", "update"]
    return table(
        heads,
        [[way, *_sizes(own), f"{_floor(own, work):.1e}", *(_ratio(s, way) for s in (sampling, updates))]
         for way, own in models.items()],
    )  # fmt: skip


def _sizes(own: Loaded) -> list[str]:
    policy, found = own.policy, own.policy.quantised
    kept = [t for t in (*policy.parameters(), *policy.buffers()) if not t.requires_grad]
    whole = f"{ledger.held(kept) / 1e6:.0f} MB"
    if found is None:
        return [whole, "–", "–"]
    return [whole, f"{found.after / 1e6:.0f} MB instead of {found.before / 1e6:.0f}", f"{found.cost:.2g}"]


@torch.no_grad()
def _floor(own: Loaded, work: Rollout) -> float:
    states = replace(frozen(own.policy, work), hidden=own.policy.hidden(work, "plain"))
    look = own.policy(work, reference=states, path="packed")
    return float(masked_mean(look.kl.abs(), work.mask))


def _ratio(seconds: dict[str, list[float]], way: str) -> str:
    return f"{statistics.median(a / b for a, b in zip(seconds[way], seconds[WHOLE], strict=True)):.2f}"


def leash(out: Path) -> str:
    runs = {
        way: planned(
            out / str(how or "whole"), way, steps=STEPS, seed=0, learning_rate=5e-3,
            model={"policy": "kleash:tiny", "device": "cpu", "adapter": {"rank": RANK}}
            | ({} if how is None else {"quantize": how}),
            algorithm={"kind": "grpo", "group_size": 8}, kl={"target": TARGET},
        )
        for way, how in WAYS.items()
    }  # fmt: skip
    train_missing(list(runs.values()), at_once=1)
    rows = []
    for way, run in runs.items():
        steps = Run(run.path).steps
        first = steps[0].kl_ref
        (found,) = held(steps)
        rows.append(
            [
                way,
                "–" if first is None else f"{first.value:g}",
                f"{found.kl:.2f} ({found.kl / found.target - 1:+.1%})",
                f"{steps[0].score:.2f}",
                f"{found.reward:.2f}",
                f"{found.beta:.3f}",
            ]
        )
    return table(["base", "KL at step 0", f"KL, target {TARGET}", "reward at first", "reward", "beta"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench-qlora"))
    given = parser.parse_args()
    texts = {"costs": costs(given.rounds), "leash": leash(given.out)}
    print(PAGE.format(machine=machine(), rank=RANK, rounds=given.rounds, steps=STEPS, **texts), end="")


if __name__ == "__main__":
    main()
