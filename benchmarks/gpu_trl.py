"""The last part of `benchmarks.gpu`: one GRPO step of kleash beside TRL's, on the same random model."""

import importlib.util
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts import Row, Setting, vowels

from kleash.demo.run import write_prompts
from kleash.training.api import train

ROWS, G, T, BETA, RATE = 16, 8, 32, 0.04, 1e-6


class Clock:
    """A reward that notes when it is called: once a step, by any trainer."""

    __name__ = "clock"

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **_: Any) -> list[float]:
        if len(completions) == ROWS:  # kleash tries the reward on fewer before it begins
            self.times.append(time.perf_counter())
        return vowels(prompts, completions)

    @property
    def step(self) -> float:
        """Seconds from one call to the next, the first step aside."""
        return statistics.median(b - a for a, b in zip(self.times[1:], self.times[2:], strict=False))


def trl_step(own: Setting) -> Iterator[Row]:
    """All weights in fp32, 2 prompts × 8 completions of 32 tokens, both trainers as they come."""
    if importlib.util.find_spec("trl") is None:
        yield Row("not run: no TRL", "", "", None)
        return
    prompts = write_prompts(own.scratch)
    mine, theirs = Clock(), Clock()
    settings = {
        "model.device": str(own.device), "algorithm.group_size": G, "kl.beta": BETA, "train.steps": own.timed + 2,
        "train.prompts_per_step": ROWS // G, "train.max_new_tokens": T, "train.min_new_tokens": T,
        "train.learning_rate": RATE,
    }  # fmt: skip
    train(str(own.random), prompts, mine, out=own.scratch / "beside-trl", settings=settings)
    _theirs(own, prompts, theirs)
    found = f"{mine.step:.3f} beside {theirs.step:.3f} s: {theirs.step / mine.step:.2f} times"
    yield Row(f"a step of {ROWS} × {T} tokens, kleash beside TRL", found, "", None)


def _theirs(own: Setting, prompts: Path, clock: Clock) -> None:
    from datasets import Dataset

    from trl import GRPOConfig, GRPOTrainer

    cpu = own.device.type == "cpu"
    given = GRPOConfig(
        output_dir=str(own.scratch / "trl"), use_cpu=cpu, bf16=False, model_init_kwargs={"dtype": "float32"},
        per_device_train_batch_size=ROWS, num_generations=G, max_completion_length=T,
        generation_kwargs={"min_new_tokens": T}, beta=BETA, learning_rate=RATE, max_steps=own.timed + 2,
        save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True, dataloader_pin_memory=not cpu,
    )  # fmt: skip
    texts = Dataset.from_dict({"prompt": prompts.read_text(encoding="utf-8").splitlines()})
    GRPOTrainer(model=str(own.random), reward_funcs=clock, args=given, train_dataset=texts).train()
