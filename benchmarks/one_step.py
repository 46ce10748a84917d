"""One GRPO step of SmolLM2-135M, the same work for every system: what the benches of a step's cost share.

The clock and the meter of memory is the reward function. Every trainer calls it once a step with all completions, so
that from one call to the next is one whole step, whatever a trainer does in between and however it counts.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

MODEL = "kleash:smollm2"
N, G, T = 2, 8, 32
SAMPLES = N * G
BETA, RATE, RANK, SEED = 0.04, 1e-6, 16, 0
THREADS = 2
#: As many as there are cores here. A run's own process, so that its peak memory is its own.
ENVIRONMENT = {"OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
#: Steps before the clock starts: one. It fills caches, makes the optimizer's state, and is every tenth step of kleash,
#: which measures how far the update went.
WARMUP = 1

OPENERS = Path("recipes/data/sentiment_prompts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step is made of: N prompts of so many tokens, G completions each of T, all weights or an adapter."""

    prompt_tokens: int
    lora: bool

    @property
    def label(self) -> str:
        return f"{f'LoRA r = {RANK}' if self.lora else 'all weights'}, P = {self.prompt_tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of the steps after the warm-up: seconds each; the process's peak in GB; tokens read through the model a step."""

    seconds: list[float]
    peak_gb: float
    tokens: dict[str, float]


def prompts(work: Work, tokenizer: Any) -> list[str]:
    """As many different prompts as a step takes twice over, each of exactly `prompt_tokens`."""
    openers = [json.loads(line)["prompt"] for line in OPENERS.read_text(encoding="utf-8").splitlines()]
    found = []
    for first in range(len(openers)):
        text = ". ".join((openers[first:] + openers[:first]) * 3)
        cut = tokenizer.decode(tokenizer(text).input_ids[: work.prompt_tokens])
        if len(tokenizer(cut).input_ids) == work.prompt_tokens:
            found.append(cut)
    assert len(set(found)) >= 2 * N, "enough texts have a cut at this length"
    return found[: 2 * N]


class Meter:
    """The reward, the clock and the meter. After `steps` whole steps it prints the cost and ends the process."""

    __name__ = "meter"

    def __init__(self, steps: int) -> None:
        self.steps, self.times = steps, []
        self.counted = counting()

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **_: Any) -> list[float]:
        if len(completions) == SAMPLES:  # kleash tries the reward on fewer before it begins
            self.times.append(time.perf_counter())
            if len(self.times) == 1 + WARMUP:
                self.counted.clear()
            if len(self.times) == 1 + WARMUP + self.steps:
                self._end()
        return [sum(letter in "aeiou" for letter in text) / 100 for text in completions]

    def _end(self) -> None:
        seconds = [after - before for before, after in zip(self.times[WARMUP:], self.times[WARMUP + 1 :], strict=False)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        tokens = {name: count / self.steps for name, count in self.counted.items()}
        print(json.dumps(asdict(Cost(seconds=seconds, peak_gb=peak, tokens=tokens))), flush=True)
        os._exit(0)  # what either would write when it ends is not part of a step


def counting() -> dict[str, int]:
    """Token positions that go through any model of this process from now on, padding included."""
    counted: dict[str, int] = {}
    forward = torch.nn.Embedding.forward

    def counts(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        name = "with gradient" if torch.is_grad_enabled() else "without"
        counted[name] = counted.get(name, 0) + ids.numel()
        return forward(self, ids)

    torch.nn.Embedding.forward = counts
    return counted


def settings(work: Work, steps: int, **changed: Any) -> dict[str, Any]:
    """kleash's settings by dotted name: its defaults but for the work itself."""
    return {
        "model.device": "cpu",
        **({"model.adapter.rank": RANK} if work.lora else {}),
        "algorithm.group_size": G,
        "kl.beta": BETA,
        "train.steps": steps,
        "train.prompts_per_step": N,
        "train.max_new_tokens": T,
        "train.min_new_tokens": T,
        "train.learning_rate": RATE,
        "train.warmup_updates": 0,
        "train.checkpoint_every": steps,
        "train.seed": SEED,
        **changed,
    }


def run_kleash(work: Work, steps: int, **changed: Any) -> None:
    """The run itself, as a user starts it; the meter ends it."""
    from transformers import AutoTokenizer

    import kleash
    from kleash.models.catalog import resolve

    texts = prompts(work, AutoTokenizer.from_pretrained(resolve(MODEL)))
    with tempfile.TemporaryDirectory() as out:
        # One more than is measured: the run's last step is followed by a checkpoint.
        asked = settings(work, WARMUP + steps + 1, **changed)
        kleash.train(MODEL, texts, Meter(steps), out=Path(out) / "run", settings=asked)


def printed(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The JSON that a worker prints last, from a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def apart(module: str, arguments: Sequence[str]) -> Cost:
    """A worker's cost, measured in a process of its own."""
    return Cost(**printed(module, arguments))
