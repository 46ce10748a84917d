"""What the leash costs: a step with the exact penalty against the same step unmeasured and unpenalised.

    python -m benchmarks.price [--rounds 5] [--prompt-tokens 200]     (a few minutes on two idle cores)

Both are kleash's own step on the same weights, alternately in one process: sample, (the reference's states,) forward
and backward, clip, AdamW. Without the leash nothing of the reference is run and no KL is computed. Medians of the
rounds' ratios; a round takes the same prompts and the same noise on both sides.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.one_step import MODEL, SAMPLES, SEED, THREADS, G, N, Work, prompts, settings
from benchmarks.runs import processor, table

PHASES = ("sample", "reference", "update")


def job_of(work: Work, out: Path) -> Any:
    from transformers import AutoTokenizer

    from kleash.models.catalog import resolve
    from kleash.rewards.load import load_reward
    from kleash.training.data import as_prompts
    from kleash.training.setup import build_job
    from kleash.training.toml import parse_config, with_settings

    texts = prompts(work, AutoTokenizer.from_pretrained(resolve(MODEL)))
    tree = {
        "out": str(out),
        "model": {"policy": MODEL},
        "data": {"prompts": "(given in Python)"},
        "rewards": [{"use": "vader"}],
    }
    config = parse_config(with_settings(tree, settings(work, 1)))
    return build_job(config, as_prompts(texts, "prompt"), [load_reward("vader")])


def step(job: Any, number: int, beta: float | None) -> dict[str, float]:
    """Seconds of each phase of one step; beta None: no leash and no measurement of it."""
    from kleash.kl.penalties import NoPenalty
    from kleash.models.sampling import sample
    from kleash.tensors import Batch
    from kleash.training.collect import reference_states
    from kleash.training.learn import learn

    first = number * N % len(job.prompts)
    index = list(range(first, first + N))
    marks = [time.perf_counter()]
    rollout = sample(
        job.loaded.policy, job.encode([job.prompts.prompts[i] for i in index]), job.sampling, job.loaded.ends,
        group_size=G, seed=SEED, step=number, prompt_index=index,
    )  # fmt: skip
    marks.append(time.perf_counter())
    states = None if beta is None else reference_states(job, rollout, job.plan)
    marks.append(time.perf_counter())
    score = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(number))
    batch = Batch(rollout, score, torch.ones(SAMPLES, dtype=torch.bool), states)
    update = job.update if beta is not None else replace(job.update, penalty=NoPenalty())
    learn(job.loaded.policy, job.optimizer, batch, update, lambda work: work(job.plan), beta=beta or 0.0)
    marks.append(time.perf_counter())
    return {name: b - a for name, a, b in zip(PHASES, marks, marks[1:], strict=False)}


def priced(work: Work, rounds: int) -> list[list[str]]:
    """A row a phase and the total: seconds without, with, and the median of the rounds' ratios."""
    with tempfile.TemporaryDirectory() as out:
        job = job_of(work, Path(out) / "run")
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for number in range(rounds + 1):
            for leashed in (False, True) if number % 2 else (True, False):
                taken = step(job, number, 0.04 if leashed else None)
                taken["step"] = sum(taken.values())
                if number:
                    found[leashed].append(taken)
            print(json.dumps({str(k): v[-1:] for k, v in found.items()}), file=sys.stderr, flush=True)
    rows = []
    for name in (*PHASES, "step"):
        free, held = ([one[name] for one in found[leashed]] for leashed in (False, True))
        ratio = statistics.median(b / a for a, b in zip(free, held, strict=True)) if name != "reference" else None
        rows.append(
            [name, f"{statistics.median(free):.2f}", f"{statistics.median(held):.2f}", f"{ratio:.3f}" if ratio else "–"]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="A step with the leash against the same step without.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    print(f"{THREADS} threads of {processor()}, torch {torch.__version__}; {given.rounds} rounds after one to warm up")
    for lora in (True, False):
        work = Work(prompt_tokens=given.prompt_tokens, lora=lora)
        heads = [work.label, "without, s", "with, s", "with / without"]
        print(f"\n{table(heads, priced(work, given.rounds))}", flush=True)


if __name__ == "__main__":
    main()
