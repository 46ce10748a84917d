"""Two runs of TRL's own GRPO with kleash as its guest: without a leash, and on one. docs/runs/trl-guest.md.

    make trl                                                         (once: an environment with TRL)
    .venv-bench/bin/python -m benchmarks.trl_guest > docs/runs/trl-guest.md    (about ten minutes)

Needs TRL; finished runs are kept and not done again.
"""

import argparse
import io
import json
import sys
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

import numpy as np
from benchmarks.runs import processor, table

from kleash.demo.grammar import fluency
from kleash.report.watch import look
from kleash.report.watch.terminal import block
from kleash.runlog import Evaluation, Sample, read

STEPS, EVERY = 80, 5
#: Name → what differs.
RUNS: dict[str, tuple[float, str | None]] = {"beta 0": (0.0, None), "target 4 nats": (0.05, "4 nats/sequence")}
PROMPTS = [
    "The film",
    "We booked the hotel and",
    "My first phone",
    "Last week the train",
    "The soup",
    "My neighbour's dog",
]

INTRODUCTION = """\
# kleash as a guest in TRL's own runs

Made by `python -m benchmarks.trl_guest > docs/runs/trl-guest.md` in the environment of `make trl`.

Two runs of `GRPOTrainer` of TRL {trl} as it comes from PyPI, on kleash:tiny ({steps} steps, all weights, learning
rate 1e-3, 32 completions of at most 24 tokens a step, VADER's sentiment as the reward), with
`Leash(trainer, every={every})` as the only addition. They differ in `beta` and `target` alone. *TRL's kl* is what TRL
logs of itself: nothing at beta = 0. *Exact KL* is the guest's, on the trainer's own model, with its standard error.
*Fluency* is the share of sentences in the guest's samples that parse under the grammar of the tiny model's corpus (one
that the limit cuts is no fault), which neither the run nor the monitor sees. {processor}.

"""


def train(out: Path, beta: float, target: str | None) -> None:
    from datasets import Dataset
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    from kleash.models.catalog import resolve
    from kleash.plug.trl import Leash
    from trl import GRPOConfig, GRPOTrainer

    judge = SentimentIntensityAnalyzer()

    def friendly(completions: list[str], **columns: object) -> list[float]:
        return [judge.polarity_scores(text)["compound"] for text in completions]

    args = GRPOConfig(
        output_dir=str(out), beta=beta, learning_rate=1e-3, lr_scheduler_type="constant", max_steps=STEPS,
        per_device_train_batch_size=32, num_generations=8, max_completion_length=24, scale_rewards="none",
        logging_steps=1, save_steps=20, report_to="none", disable_tqdm=True, use_cpu=True, seed=1,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=str(resolve("kleash:tiny")), reward_funcs=friendly, args=args,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 64}),
    )  # fmt: skip
    trainer.add_callback(Leash(trainer, target=target, every=EVERY, prompts=PROMPTS))
    with redirect_stdout(sys.stderr):
        trainer.train()


def course(out: Path) -> str:
    """Every 20 steps: what TRL logged, and what the guest measured."""
    state = json.loads((out / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    logged = {row["step"]: row for row in state["log_history"]}
    seen = {event.step: event for event in read(out / "kleash" / "events.jsonl") if isinstance(event, Evaluation)}
    texts: dict[int, list[str]] = {}
    for event in read(out / "kleash" / "samples.jsonl"):
        if isinstance(event, Sample):
            texts.setdefault(event.step, []).append(f"{event.prompt}{event.completion}")
    betas = look(out / "kleash").log
    rows = []
    for step in range(0, STEPS + 1, 20):
        row, kl = logged.get(max(step, 1), {}), seen[step].kl_ref
        near = (betas.step <= max(step, 1)) & np.isfinite(betas.columns["beta"])
        own = f"{row['kl']:.4f}" if "kl" in row else "–"
        exact = "–" if kl is None else f"{kl.value:.2f} ± {kl.standard_error or 0:.2f}"
        beta = f"{betas.columns['beta'][near][-1]:.4g}"
        rows.append([str(step), f"{row['reward']:.2f}", own, exact, beta, f"{fluency(texts[step]):.2f}"])
    head = ["step", "reward", "TRL's kl, nats/token", "exact KL, nats/sequence", "beta", "fluency"]
    return table(head, rows)


def verdict(path: Path, shown: str) -> str:
    case = look(path)
    return f"```\n$ kleash watch {shown}\n{block(case, 118).plain}\n```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-trl-guest"))
    home = parser.parse_args().runs
    page = io.StringIO()
    page.write(INTRODUCTION.format(trl=version("trl"), steps=STEPS, every=EVERY, processor=processor()))
    for name, (beta, target) in RUNS.items():
        out = home / name.replace(" ", "-")
        if not (out / "kleash" / "events.jsonl").exists():
            train(out, beta, target)
        page.write(f"## {name}\n\n{course(out)}\n\n{verdict(out / 'kleash', f'{out.name}/kleash')}\n")
    print(page.getvalue().rstrip())


if __name__ == "__main__":
    main()
