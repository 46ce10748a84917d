"""The road of RLHF on SmolLM2-135M, by LoRA, on a CPU: texts, a reward model, then RL on a leash, or DPO; one page.

    python -m benchmarks.smollm2_rlhf > docs/runs/smollm2-rlhf.md

Stages that are finished in runs/bench-smollm2-rlhf are not done again, an unfinished one goes on. `--tiny`: the same on
the embedded model in a minute, to try the bench itself.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.runs import machine, table

from kleash.records import Reading
from kleash.report.log import load
from kleash.runlog.offline import PairEvaluation, ScoreEvaluation, TextEvaluation
from kleash.training.api import start
from kleash.training.offline.dpo_config import DPOConfig
from kleash.training.offline.dpo_setup import build_dpo
from kleash.training.offline.reward_config import RewardConfig
from kleash.training.offline.reward_setup import build_reward
from kleash.training.offline.run import OfflineRun
from kleash.training.offline.sft_config import SFTConfig
from kleash.training.offline.sft_setup import build_sft
from kleash.training.offline.start import run_offline
from kleash.training.run import Run
from kleash.training.toml import parse, parse_config

TARGET, LAST, TOKENS = 4.0, 5, 24
REWARDS = ("reward model", "vader")
RATE, DPO_RATE = 5e-4, 1e-4
#: Steps of each stage, and the rows of a step.
SFT_STEPS, REWARD_STEPS, DPO_STEPS, RL_STEPS, ROWS = 20, 24, 12, 20, 16
#: Of the recipe's held-out pairs.
HELD = 60

INTRODUCTION = """\
# The road of RLHF on {model}

Made by `python -m benchmarks.smollm2_rlhf > docs/runs/smollm2-rlhf.md` (`make bench-smollm2-rlhf`); finished stages are
kept and not done again.

{machine}

Every stage is LoRA of rank 16 at a learning rate of {rate:g} (DPO {dpo_rate:g}), and small enough for a CPU: it shows
that the road can be walked and where its KLs are, and no more. The rows are those of the recipes: praising notes
(`recipes/tiny_texts.jsonl`), and pairs of which a careless rater who likes praise has chosen one
(`recipes/tiny_pairs.jsonl`, the first {held} of the held-out ones). The policy is paid by the reward model alone;
VADER's sentiment is watched with weight 0.
"""


@dataclass(frozen=True, slots=True)
class Road:
    """Where the stages lie, and the model that they begin with."""

    out: Path
    model: str

    def of(self, stage: str) -> Path:
        return self.out / stage

    def model_section(self, policy: str) -> dict[str, Any]:
        return {"policy": policy, "device": "cpu", "adapter": {"rank": 16}}

    def rows_section(self, steps: int, rate: float = RATE) -> dict[str, Any]:
        return {"steps": steps, "batch_size": ROWS, "learning_rate": rate, "checkpoint_every": steps, "keep": 1}


def offline(road: Road, stage: str, tree: dict[str, Any], spec: type, build: Callable[..., Any]) -> OfflineRun:
    """A stage that learns from rows; gone on with, if it was stopped."""
    out, run = road.of(stage), OfflineRun(road.of(stage))
    there = (out / "events.jsonl").exists()
    if there and run.finished:
        return run
    print(stage, file=sys.stderr, flush=True)
    return run_offline(parse({"out": str(out), **tree}, spec), build, resume=there)


def texts(road: Road) -> OfflineRun:
    data = {"texts": "recipes/tiny_texts.jsonl", "held_out": "recipes/tiny_texts_held_out.jsonl"}
    tree = {"model": road.model_section(road.model), "data": data, "train": road.rows_section(SFT_STEPS)}
    return offline(road, "1-sft", tree | {"kl": {"prompts": 16, "max_new_tokens": TOKENS}}, SFTConfig, build_sft)


def on_pairs(road: Road, reference: str, steps: int, rate: float = RATE) -> dict[str, Any]:
    held = road.of("held-out.jsonl")
    lines = Path("recipes/tiny_pairs_held_out.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    held.write_text("".join(lines[:HELD]), encoding="utf-8")
    data = {"pairs": "recipes/tiny_pairs.jsonl", "held_out": str(held)}
    return {"model": road.model_section(reference), "data": data, "train": road.rows_section(steps, rate)}


def policy(road: Road, reference: str, reward: str) -> Run:
    """GRPO against the reward model, on a leash to the reference."""
    out = road.of("3-grpo")
    there = (out / "events.jsonl").exists()
    if there and Run(out).finished:
        return Run(out)
    print("3-grpo", file=sys.stderr, flush=True)
    tree = {
        "out": str(out),
        "model": road.model_section(reference),
        "data": {"prompts": "recipes/tiny_prompts.txt"},
        "rewards": [{"use": f"model:{reward}", "name": REWARDS[0]}, {"use": REWARDS[1], "weight": 0.0}],
        "algorithm": {"kind": "grpo", "group_size": 4},
        "kl": {"target": f"{TARGET:g} nats/sequence"},
        "train": {
            "steps": RL_STEPS,
            "prompts_per_step": 4,
            "max_new_tokens": TOKENS,
            "learning_rate": RATE,
            "checkpoint_every": RL_STEPS,
        },
    }
    return start(parse_config(tree), resume=there)


def supervised(run: OfflineRun) -> str:
    rows = []
    for one in run.evaluations:
        assert isinstance(one, TextEvaluation)
        rows.append([str(one.step), f"{one.loss:.3f}", f"{one.kl_text or 0:.3f}", reading(one.kl_ref)])
    heads = ["after step", "held-out loss, nats/token", "KL there, nats/token", "KL on own words, nats/sequence"]
    return (
        "## 1 Texts: the reference\n\n"
        f"`kleash sft`: {len(run.steps)} steps of {ROWS} rows. The KL is to SmolLM2.\n\n{table(heads, rows)}\n"
    )


def scored(run: OfflineRun) -> str:
    rows = []
    for one in run.evaluations:
        assert isinstance(one, ScoreEvaluation)
        interval = f"{one.accuracy:.3f} ({one.accuracy_low:.3f} to {one.accuracy_high:.3f})"
        rows.append([str(one.step), interval, f"{one.loss:.3f}", f"{one.brier or 0:.3f}", f"{one.margin or 0:.2f}"])
    heads = ["after step", "held-out accuracy (95 %)", "loss", "Brier", "mean r_c − r_r"]
    said = f"## 2 A reward model of pairs\n\n`kleash reward`: {len(run.steps)} steps of {ROWS} pairs."
    return f"{said}\n\n{table(heads, rows)}\n"


def leashed(run: Run) -> str:
    steps = load(run.path).steps
    rows = [
        [
            str(step.step),
            *("–" if (score := (step.scores or {}).get(name)) is None else f"{score:.2f}" for name in REWARDS),
            reading(step.kl_ref),
            f"{step.beta or 0:.4f}",
            f"{step.length:.1f}",
        ]
        for step in steps
        if step.step % LAST == 0
    ]
    late = [step.kl_ref.value for step in steps[-LAST:] if step.kl_ref]
    heads = ["step", REWARDS[0], f"{REWARDS[1]}, watched", "KL, nats/sequence", "beta", "tokens"]
    told = (
        f"`kleash train`: GRPO, {RL_STEPS} steps of 4 prompts × 4 completions of at most {TOKENS} tokens, a target of "
        f"{TARGET:g} nats/sequence from stage 1. A line is one batch of 16 completions; the last is the finished "
        f"policy. Mean KL of the last {LAST} readings: {sum(late) / len(late):.2f}."
    )
    return f"## 3 RL against the reward model\n\n{told}\n\n{table(heads, rows)}\n"


def preferred(run: OfflineRun) -> str:
    rows = []
    for one in run.evaluations:
        assert isinstance(one, PairEvaluation)
        accuracy = f"{one.accuracy:.3f} ± {one.accuracy_error or 0:.3f}"
        changes = (f"{change or 0:+.2f}" for change in (one.chosen_change, one.margin_change))
        rows.append([str(one.step), accuracy, reading(one.kl_ref), *changes])
    heads = ["after step", "held-out accuracy", "KL on own words, nats/sequence", "chosen, nats", "margin, nats"]
    return (
        f"## Or DPO on the same pairs\n\n`kleash dpo`: {len(run.steps)} steps of {ROWS} pairs, beta 0.1, from stage 1. "
        "*Chosen* and *margin*: change of log π(chosen) and of its distance to the rejected since the start, per "
        f"sequence. The KL is in the run's report too, as its first chart.\n\n{table(heads, rows)}\n"
    )


def reading(kl: Reading | None) -> str:
    return "–" if kl is None else f"{abs(kl.value):.2f} ± {kl.standard_error or 0:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Walk the road of RLHF on SmolLM2 and print what came of it.")
    parser.add_argument("--tiny", action="store_true", help="on the embedded model instead")
    tiny = parser.parse_args().tiny
    name = "kleash:tiny" if tiny else "kleash:smollm2"
    road = Road(Path("runs/bench-tiny-rlhf" if tiny else "runs/bench-smollm2-rlhf"), name)
    first = texts(road)
    reference = str(first.model.path)
    judged = offline(road, "2-reward", on_pairs(road, reference, REWARD_STEPS), RewardConfig, build_reward)
    direct = on_pairs(road, reference, DPO_STEPS, DPO_RATE) | {"kl": {"prompts": 16, "max_new_tokens": TOKENS}}
    parts = [
        INTRODUCTION.format(
            model=name if tiny else "SmolLM2-135M", machine=machine(), rate=RATE, dpo_rate=DPO_RATE, held=HELD
        ),
        supervised(first),
        scored(judged),
        leashed(policy(road, reference, str(judged.model.path))),
        preferred(offline(road, "or-dpo", direct, DPOConfig, build_dpo)),
    ]
    print("\n".join(parts), end="")


if __name__ == "__main__":
    main()
