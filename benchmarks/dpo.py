"""kleash against TRL: one DPO step on the same pairs, in turn, in one sitting; prints the tables of docs/runs/dpo.md.

    python -m benchmarks.dpo                      (about 8 minutes on two idle cores)
    python -m benchmarks.dpo --target             what a KL target does, on the embedded model; --law NAME: of one loss

Each measurement is a process of its own, so that its peak of resident memory is its own. The clock is the end of the
optimizer's step, in both.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from benchmarks.one_step import MODEL, OPENERS, RANK, SEED, THREADS, WARMUP, Cost, apart, counting, printed
from benchmarks.runs import processor, table
from torch.optim.optimizer import register_optimizer_step_post_hook

#: Pairs of a step, tokens of a prompt and of an answer with its end.
N, P, T = 8, 200, 64
BETA, RATE = 0.1, 1e-5
#: Steps whose loss and gradient norm are compared; the first is at the reference, where every loss is log 2.
COMPARED = 2


def pairs(tokenizer: Any) -> list[dict[str, str]]:
    """Pairs of exactly P + T tokens a side, cut from openers; their order is all that says what is preferred."""
    openers = [json.loads(line)["prompt"] for line in OPENERS.read_text(encoding="utf-8").splitlines()]

    def cut(first: int, length: int, before: str) -> str | None:
        text = before + ". ".join((openers[first:] + openers[:first]) * 3)
        found = tokenizer.decode(tokenizer(text).input_ids[:length])
        return found if len(tokenizer(found).input_ids) == length else None

    prompts = [text for i in range(len(openers)) if (text := cut(i, P, ""))]
    answers = [text for i in range(len(openers)) if (text := cut(i, T - 1, ", "))]
    rows = []
    for i, prompt in enumerate(prompts):
        both = answers[2 * i % len(answers)], answers[(2 * i + 1) % len(answers)]
        if all(len(tokenizer(prompt + answer).input_ids) == P + T - 1 for answer in both):
            rows.append({"prompt": prompt, "chosen": both[0], "rejected": both[1]})
    assert len(rows) >= N, "enough texts have a cut at this length"
    return rows[:N]


def tokenizer() -> Any:
    from transformers import AutoTokenizer

    from kleash.models.catalog import resolve

    return AutoTokenizer.from_pretrained(resolve(MODEL))


def kleash_settings(steps: int, lora: bool, **changed: Any) -> dict[str, Any]:
    """Its defaults but for the work itself."""
    return {
        "model.device": "cpu",
        **({"model.adapter.rank": RANK} if lora else {}),
        "loss.beta": BETA,
        "kl.prompts": 2,
        "kl.samples": 1,
        "train.steps": steps,
        "train.batch_size": N,
        "train.learning_rate": RATE,
        "train.decay": "constant",
        "train.warmup_updates": 0,
        "train.checkpoint_every": steps,
        "train.seed": SEED,
        **changed,
    }


def trl_settings(steps: int, rows: int = N) -> dict[str, Any]:
    """The same for TRL. `rows` pairs at a time go through the model; the rest is accumulation."""
    return {
        "use_cpu": True,
        "bf16": False,
        "model_init_kwargs": {"dtype": "float32"},
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": N // rows,
        "gradient_checkpointing": False,
        "max_length": None,
        "beta": BETA,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "max_steps": steps,
        "seed": SEED,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def trainer(out: str, lora: bool, settings: dict[str, Any]) -> Any:
    from datasets import Dataset
    from peft import LoraConfig

    from kleash.models.catalog import resolve
    from trl import DPOConfig, DPOTrainer  # pyright: ignore[reportAttributeAccessIssue]

    adapter = LoraConfig(r=RANK, lora_alpha=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return DPOTrainer(
        model=str(resolve(MODEL)),
        args=DPOConfig(output_dir=out, **settings),
        train_dataset=Dataset.from_list(pairs(tokenizer())),
        peft_config=adapter if lora else None,
    )


class Meter:
    """Called at the end of every optimizer step. After `steps` whole ones it prints the cost and ends the process."""

    def __init__(self, steps: int) -> None:
        self.steps, self.times, self.counted = steps, [], counting()
        register_optimizer_step_post_hook(self)

    def __call__(self, *_: Any) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) == WARMUP:
            self.counted.clear()
        if len(self.times) < WARMUP + self.steps:
            return
        seconds = [after - before for before, after in zip(self.times[WARMUP - 1 :], self.times[WARMUP:], strict=False)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        tokens = {name: count / self.steps for name, count in self.counted.items()}
        print(json.dumps(asdict(Cost(seconds=seconds, peak_gb=peak, tokens=tokens))), flush=True)
        os._exit(0)


def worker(kind: str, lora: bool, steps: int, rest: Sequence[str]) -> None:
    torch.set_num_threads(THREADS)
    compared = kind.endswith("-same")
    total = COMPARED if compared else WARMUP + steps + 1
    if not compared:
        Meter(steps)
    with tempfile.TemporaryDirectory() as out:
        if kind.startswith("kleash"):
            import kleash

            changed = dict(setting.split("=") for setting in rest)
            run = kleash.dpo(
                MODEL, pairs(tokenizer()), out=Path(out) / "run", settings=kleash_settings(total, lora, **changed)
            )
            found = {"loss": [step.loss for step in run.steps], "norm": [step.grad_norm for step in run.steps]}
        else:
            made = trainer(out, lora, trl_settings(total, *map(int, rest)))
            made.train()
            logs = [line for line in made.state.log_history if "grad_norm" in line]
            found = {"loss": [line["loss"] for line in logs], "norm": [line["grad_norm"] for line in logs]}
        print(json.dumps(found))


SYSTEMS: dict[str, tuple[str, ...]] = {
    "kleash": ("kleash",),
    "kleash, reference's log-probs on disk": ("kleash", "kl.cache=true"),
    f"TRL, {N} pairs at once": ("trl",),
}


def cost(lora: bool, steps: int, system: Sequence[str]) -> Cost:
    arguments = ["--worker", system[0], "--steps", str(steps), *(["--lora"] if lora else [])]
    return apart("benchmarks.dpo", [*arguments, *system[1:]])


def cost_rows(lora: bool, rounds: int, steps: int) -> list[list[str]]:
    """Every system in turn, `rounds` times; TRL first in every other round."""
    found: dict[str, list[Cost]] = {system: [] for system in SYSTEMS}
    for number in range(rounds):
        for system in list(SYSTEMS)[:: -1 if number % 2 else 1]:
            found[system].append(cost(lora, steps, SYSTEMS[system]))
            print(f"{system}, round {number + 1}: {found[system][-1]}", file=sys.stderr, flush=True)
    *_, theirs = found.values()
    rows = []
    for system, costs in found.items():
        middle = [statistics.median(second for one in side for second in one.seconds) for side in (costs, theirs)]
        peak = [statistics.median(one.peak_gb for one in side) for side in (costs, theirs)]
        every = sorted(second for one in costs for second in one.seconds)
        tokens = costs[0].tokens
        rows.append([
            system, f"{middle[0]:.1f} ({every[0]:.1f} … {every[-1]:.1f})", f"{middle[1] / middle[0]:.2f}",
            f"{peak[0]:.2f}", f"{peak[0] / peak[1]:.2f}",
            f"{tokens.get('without', 0):.0f} + {tokens.get('with gradient', 0):.0f}",
        ])  # fmt: skip
    return rows


def same_rows(lora: bool) -> list[list[str]]:
    flag = ["--lora"] if lora else []
    sides = [printed("benchmarks.dpo", ["--worker", f"{name}-same", *flag]) for name in ("kleash", "trl")]
    rows = []
    for step in range(COMPARED):
        cells = [str(step + 1)]
        for figure in ("loss", "norm"):
            ours, theirs = (side[figure][step] for side in sides)
            cells += [f"{ours:.7g}", f"{theirs:.7g}", f"{abs(ours / theirs - 1):.1e}"]
        rows.append(cells)
    return rows


#: What a target is tried with: losses whose optimum on given labels is finite, and DPO's, whose is not.
LAWS: dict[str, dict[str, Any]] = {
    "dpo": {"loss.kind": "dpo"},
    "ipo": {"loss.kind": "ipo"},
    "cdpo, ki 0.3, error_clip 1": {
        "loss.kind": "cdpo", "kl.controller.ki": 0.3, "kl.controller.error_clip": 1.0
    },
}  # fmt: skip


def target_rows(target: float, epochs: int, law: str) -> list[list[str]]:
    """Readings of the last half of a run at a constant learning rate, on the recipe's pairs. law: "" for all."""
    import kleash

    rows = []
    for name, changed in LAWS.items():
        if not name.startswith(law):
            continue
        for seed in range(3):
            with tempfile.TemporaryDirectory() as out:
                run = kleash.dpo(
                    "kleash:tiny", "recipes/tiny_pairs.jsonl", held_out="recipes/tiny_pairs_held_out.jsonl",
                    kl_target=f"{target:g} nats/sequence", out=Path(out) / "run",
                    settings={"train.epochs": epochs, "train.decay": "constant", "train.learning_rate": 1e-3,
                              "train.evaluate_every": 5, "kl.samples": 4, "train.seed": seed, **changed},
                )  # fmt: skip
                events: list[Any] = run.evaluations
            late = events[len(events) // 2 :]
            kls = [event.kl_ref.value for event in late]
            rows.append([name, str(seed), f"{statistics.fmean(kls):.2f}", f"{min(kls):.2f} … {max(kls):.2f}",
                         f"{kls[-1]:.2f}", f"{late[-1].beta:.3g}", f"{late[-1].accuracy:.3f}"])  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="One DPO step of kleash and of TRL, measured alternately.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1, help="steps after the warm-up, in each process")
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--only", choices=("same", "cost"), help="one of the two tables")
    parser.add_argument("--target", action="store_true", help="what a KL target does instead")
    parser.add_argument("--law", default="", choices=("dpo", "ipo", "cdpo"), help="with --target: of one loss")
    parser.add_argument("--worker", choices=("kleash", "trl", "kleash-same", "trl-same"), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.lora, given.steps, given.rest)
        return
    if given.target:
        heads = ["loss", "seed", "mean KL, last half", "range", "last KL", "last beta", "last held-out accuracy"]
        print(table(heads, target_rows(2.0, 4, given.law)))
        return
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "peft", "accelerate"))
    print(
        f"{THREADS} threads on {os.cpu_count()} cores of {processor()}; Python {platform.python_version()}, {packages}."
        f"\n\nSmolLM2-135M-Instruct, float32, {f'LoRA r = {RANK}' if given.lora else 'all weights'}. DPO: {N} pairs a "
        f"step, prompts of exactly P = {P} tokens, both answers of exactly T = {T}; beta {BETA}, AdamW at {RATE:g}, no "
        f"dropout. {WARMUP} step to warm up.\n\nkleash: {kleash_settings(1, given.lora)}\n\nTRL: {trl_settings(1)}\n",
        flush=True,
    )
    if given.only != "cost":
        heads = ["step", "loss: kleash", "TRL", "apart", "gradient norm: kleash", "TRL", "apart"]
        print(f"## The same steps\n\n{table(heads, same_rows(given.lora))}", flush=True)
    if given.only == "same":
        return
    heads = ["", "seconds a step (all)", "TRL's time / its own", "peak GB", "of TRL's",
             "tokens read: no gradient + gradient"]  # fmt: skip
    print(f"\n## What a step costs\n\n{table(heads, cost_rows(given.lora, given.rounds, given.steps))}", flush=True)


if __name__ == "__main__":
    main()
