"""kleash against TRL: one GRPO step, the same work, alternately in one sitting; prints the tables of docs/runs/trl.md.

    make bench-trl                                (about 25 minutes on two idle cores)
    python -m benchmarks.trl --rounds 1 --steps 1 --only full-200

Each measurement is a process of its own. The first table says whether both differentiate the same thing.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.one_step import (
    BETA,
    MODEL,
    RANK,
    RATE,
    SAMPLES,
    SEED,
    THREADS,
    WARMUP,
    Cost,
    G,
    Meter,
    N,
    T,
    Work,
    apart,
    printed,
    prompts,
    run_kleash,
    settings,
)  # fmt: skip
from benchmarks.runs import processor, table

WORKS = {
    "full-200": Work(prompt_tokens=200, lora=False),
    "full-5": Work(prompt_tokens=5, lora=False),
    "lora-200": Work(prompt_tokens=200, lora=True),
    "lora-5": Work(prompt_tokens=5, lora=True),
}


# ── TRL ─────────────────────────────────────────────────────────────────────────────────────────────────


def trl_settings(steps: int, rows: int = SAMPLES, checkpointing: bool = False, beta: float = BETA) -> dict[str, Any]:
    """TRL's settings for the same step. `rows` at a time go through the model; the rest is accumulation."""
    return {
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": SAMPLES // rows,
        "gradient_checkpointing": checkpointing,
        "num_generations": G,
        "max_completion_length": T,
        "generation_kwargs": {"min_new_tokens": T},
        "beta": beta,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "max_steps": steps,
        "seed": SEED,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def trainer(work: Work, out: str, settings: dict[str, Any], reward: Any) -> Any:
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer

    from kleash.models.catalog import resolve
    from trl import GRPOConfig, GRPOTrainer

    adapter = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    texts = prompts(work, AutoTokenizer.from_pretrained(resolve(MODEL)))
    return GRPOTrainer(
        model=str(resolve(MODEL)),
        reward_funcs=reward,
        args=GRPOConfig(output_dir=out, **settings),
        train_dataset=Dataset.from_dict({"prompt": texts}),
        peft_config=adapter if work.lora else None,
    )


def run_trl(work: Work, steps: int, rows: int, checkpointing: bool) -> None:
    with tempfile.TemporaryDirectory() as out:
        trainer(work, out, trl_settings(WARMUP + steps + 1, rows, checkpointing), Meter(steps)).train()


def agreement(work: Work) -> None:
    """Prints loss and gradient of both on the same samples, as JSON."""
    from benchmarks import objective

    with tempfile.TemporaryDirectory() as out:
        made = trainer(work, out, trl_settings(1, beta=objective.BETA), Meter(1))
        print(json.dumps(asdict(objective.compare(work, made, Path(out) / "run"))))


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────

#: What TRL may be given to be at its best: rows that go through the model at a time, and activation checkpointing.
OPTIONS = {
    "16 rows at once": (16, False),
    "4 rows at a time": (4, False),
    "16 rows at once, checkpointing": (16, True),
    "4 rows at a time, checkpointing": (4, True),
}
#: The options that did best on each work, from `--options`: the fastest, and the one with the least memory.
FASTEST, SMALLEST = "16 rows at once", "4 rows at a time, checkpointing"
#: The same for kleash: activation checkpointing, and one prompt's group at a time.
OWN = {
    "as it comes": (),
    "checkpointing": ("model.gradient_checkpointing=true",),
    "1 group at a time, checkpointing": ("model.gradient_checkpointing=true", "train.groups_per_pass=1"),
}
K3 = ("kl.penalty.kind=in_loss", "kl.penalty.estimator=k3")
SYSTEMS: dict[str, tuple[str, ...]] = {
    "kleash": ("kleash",),
    "kleash, k3 in the loss": ("kleash", *K3),
    f"TRL, {FASTEST}": ("trl", FASTEST),
}


def cost(name: str, steps: int, system: Sequence[str]) -> Cost:
    return apart("benchmarks.trl", ["--worker", system[0], "--only", name, "--steps", str(steps), *system[1:]])


def worker(kind: str, work: Work, steps: int, rest: Sequence[str]) -> None:
    match kind:
        case "kleash":
            run_kleash(work, steps, **dict(setting.split("=") for setting in rest))
        case "trl":
            run_trl(work, steps, *OPTIONS[rest[0]])
        case _:
            agreement(work)


def measured(name: str, rounds: int, steps: int) -> dict[str, list[Cost]]:
    """Every system in turn, `rounds` times; TRL first in every other round."""
    found: dict[str, list[Cost]] = {system: [] for system in SYSTEMS}
    for number in range(rounds):
        for system in list(SYSTEMS)[:: -1 if number % 2 else 1]:
            found[system].append(cost(name, steps, SYSTEMS[system]))
            print(f"{name}, round {number + 1}, {system}: {found[system][-1]}", file=sys.stderr, flush=True)
    return found


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────


def seconds(costs: Sequence[Cost]) -> float:
    return statistics.median(second for one in costs for second in one.seconds)


def cost_rows(found: dict[str, list[Cost]]) -> list[list[str]]:
    theirs = found[list(SYSTEMS)[-1]]
    rows = []
    for system, costs in found.items():
        faster = statistics.median(seconds([b]) / seconds([a]) for a, b in zip(costs, theirs, strict=True))
        smaller = statistics.median(a.peak_gb / b.peak_gb for a, b in zip(costs, theirs, strict=True))
        every = sorted(second for one in costs for second in one.seconds)
        peak = statistics.median(one.peak_gb for one in costs)
        tokens = costs[0].tokens
        rows.append([
            system, f"{seconds(costs):.1f} ({every[0]:.1f} … {every[-1]:.1f})", f"{SAMPLES * T / seconds(costs):.1f}",
            f"{faster:.2f}", f"{peak:.2f}", f"{smaller:.2f}",
            f"{tokens.get('without', 0):.0f} + {tokens.get('with gradient', 0):.0f}",
        ])  # fmt: skip
    return rows


def same_rows(names: Sequence[str]) -> list[list[str]]:
    rows = []
    for name in names:
        found = printed("benchmarks.trl", ["--worker", "same", "--only", name])
        cells = [f"{value:.7g}" for pair in (found["loss"], found["norm"]) for value in pair]
        off = [abs(a / b - 1) for a, b in (found["loss"], found["norm"])]
        rows.append([WORKS[name].label, *cells[:2], f"{off[0]:.1e}", *cells[2:], f"{off[1]:.1e}",
                     f"{found['apart']:.1e}"])  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def introduction() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft", "accelerate"))
    return (
        f"{THREADS} threads on {os.cpu_count()} cores of {processor()}; Python {platform.python_version()}, "
        f"{packages}.\n\nSmolLM2-135M-Instruct, float32. GRPO: N = {N} prompts, G = {G} completions each of exactly "
        f"T = {T} tokens ({SAMPLES * T} a step), beta {BETA}, AdamW at {RATE:g}, one update a step, no dropout. "
        f"{WARMUP} step to warm up.\n\nkleash: {settings(WORKS['full-200'], 1)}\n\nTRL: "
        f"{trl_settings(1)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One GRPO step of kleash and of TRL, measured alternately.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps after the warm-up, in each process")
    parser.add_argument("--only", choices=WORKS, action="append")
    parser.add_argument("--options", action="store_true", help="each system once with each of its options")
    parser.add_argument("--worker", choices=("kleash", "trl", "same"), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only or list(WORKS)
    if given.worker:
        worker(given.worker, WORKS[names[0]], given.steps, given.rest)
        return
    print(introduction(), flush=True)
    if given.options:
        for name in names:
            tried = {f"TRL, {option}": cost(name, given.steps, ("trl", option)) for option in OPTIONS}
            tried |= {f"kleash, {option}": cost(name, given.steps, ("kleash", *own)) for option, own in OWN.items()}
            rows = [[option, f"{seconds([one]):.1f}", f"{one.peak_gb:.2f}"] for option, one in tried.items()]
            print(f"\n{WORKS[name].label}\n\n{table(['', 'seconds a step', 'peak GB'], rows)}", flush=True)
        return
    heads = ["", "loss: kleash", "TRL", "apart", "gradient norm: kleash", "TRL", "apart", "‖g − g'‖/‖g'‖"]
    print(f"\n## The same objective\n\n{table(heads, same_rows(names))}", flush=True)
    heads = ["", "seconds a step (all)", "completion tokens/s", "TRL's time / its own", "peak GB", "of TRL's",
             "tokens read: no gradient + gradient"]  # fmt: skip
    for name in names:
        print(f"\n## {WORKS[name].label}\n\n{table(heads, cost_rows(measured(name, given.rounds, given.steps)))}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
