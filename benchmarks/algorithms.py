"""Every algorithm's recipe on the tiny model, with one budget and one target: docs/runs/algorithms.md.

    python -m benchmarks.algorithms > docs/runs/algorithms.md

Runs that are finished in runs/bench-algorithms are not done again. Exits with 1 while one is missing. With --keep FILE
a row whose run is not here is taken over from that earlier page, and the page says so: an algorithm that is new needs
its own run alone (--only NAME).
"""

import argparse
import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.algorithms import ALGORITHMS
from kleash.demo.grammar import fluency
from kleash.demo.run import texts
from kleash.demo.side_by_side import Planned
from kleash.records import Step
from kleash.report.log import load
from kleash.report.log import mean as mean_of

OUT = Path("runs/bench-algorithms")
RECIPES = Path(__file__).parents[1] / "recipes"
STEPS, LAST, COMPLETIONS, TARGET = 60, 20, 64, "4 nats/sequence"
#: The recipes by the algorithm that each is for.
NAMES = {
    "grpo": "tiny_grpo",
    "rloo": "tiny_rloo",
    "ppo": "tiny_ppo",
    "gspo": "tiny_gspo",
    "cispo": "tiny_cispo",
    "dapo": "tiny_dapo",
    "reinforce++": "tiny_reinforce_pp",
    "remax": "tiny_remax",
    "best_of_n": "tiny_best_of_n",
    "online_dpo": "tiny_online_dpo",
}
#: As published without a leash, or with an entropy bonus in its place.
UNLEASHED = {"Dr. GRPO": "tiny_dr_grpo", "dapo": "tiny_dapo", "dapo, entropy bonus": "tiny_entropy"}

INTRODUCTION = """\
# Every algorithm on the tiny model

Made by `python -m benchmarks.algorithms > docs/runs/algorithms.md` (`make bench-algorithms`); finished runs are kept
and not done again.

{machine}

The recipes of [algorithms.md](../algorithms.md), each with its own settings of the algorithm, learning rate and
penalty, and all with the same budget: {steps} steps of {completions} completions of at most 32 tokens, on the demo's
prompts, reward VADER, seed {seed}. Where the table says a target, it is {target}, held by the controller's defaults.
REINFORCE++ and ReMax take the {completions} completions from as many prompts, DAPO from {dapo} prompts of 16, online
DPO from {pairs} of 2, the others from 8 of 8. ReMax decodes a greedy completion for each prompt besides.

Means over the last {last} steps: reward, KL(policy‖reference) in nats per sequence, beta, entropy in nats per token.
*Fluency* is the share of these steps' sampled sentences that parse under the grammar of the tiny model's corpus. One
seed and one budget: it shows that each runs and how it is held, and does not rank them.

"""


def run(label: str, recipe: str, seed: int, *, leashed: bool) -> Planned:
    """The recipe's algorithm, penalty and rate; target, budget, prompts and reward are the bench's."""
    tree = tomllib.loads((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8"))
    algorithm, kl = tree["algorithm"], dict(tree.get("kl", {}))
    changed: dict[str, Any] = {"algorithm": algorithm}
    if leashed:
        changed["kl"] = kl | {"target": TARGET}
    elif kl:
        changed["kl"] = kl
    if "entropy" in tree:
        changed["entropy"] = tree["entropy"]
    name = f"{label} {'leashed' if leashed else 'unleashed'} seed {seed}"
    changed["train"] = {
        "steps": STEPS,
        "prompts_per_step": COMPLETIONS // group_size(algorithm),
        "max_new_tokens": 32,
        "learning_rate": tree["train"]["learning_rate"],
        "checkpoint_every": STEPS,
        "seed": seed,
    }
    return planned(OUT / "".join(c if c.isalnum() else "-" for c in name), name, steps=STEPS, seed=seed, **changed)


def group_size(algorithm: dict[str, Any]) -> int:
    return algorithm.get("group_size") or ALGORITHMS[algorithm["kind"]]().group_size


def runs(seed: int) -> dict[str, Planned]:
    """Label → run, in the table's order."""
    held = {name: run(name, recipe, seed, leashed=True) for name, recipe in NAMES.items()}
    return held | {f"{n}, no leash": run(n, recipe, seed, leashed=False) for n, recipe in UNLEASHED.items()}


def row(label: str, one: Planned) -> list[str]:
    log = load(one.path)
    steps = [step for step in log.steps if step.step < STEPS][-LAST:]
    numbers = {step.step for step in steps}
    return [
        label,
        "–" if steps[-1].target is None else TARGET,
        f"{mean(s.score for s in steps):.2f}",
        f"{mean(s.kl_ref.value for s in steps if s.kl_ref):.2f}",
        f"{fluency(texts(log, numbers)):.2f}",
        "–" if steps[-1].target is None else f"{mean(s.beta for s in steps):.3f}",
        f"{mean(s.entropy for s in steps):.2f}",
        besides(steps),
    ]


def taken_over(page: Path, labels: Iterable[str]) -> dict[str, list[str]]:
    """Rows of an earlier page by label, of those that are asked for."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells for cells in rows if cells[0] in set(labels)}


def mean(values: Iterable[float | None]) -> float:
    found = mean_of(values)
    assert found is not None, "every one of these steps measures it"
    return found


def besides(steps: list[Step]) -> str:
    """What an algorithm of this kind alone measures."""
    last, said = steps[-1], []
    if last.score_greedy is not None:
        said.append(f"greedy reward {mean(s.score_greedy for s in steps):.2f}")
    if last.entropy_coef is not None:
        said.append(f"coefficient of the bonus {mean(s.entropy_coef for s in steps):.3f}")
    if last.groups_drawn is not None:
        said.append(f"{mean(s.groups_drawn for s in steps):.1f} groups drawn a step")
    if last.explained_variance is not None:
        said.append(f"explained variance {mean(s.explained_variance for s in steps):.2f}")
    return ", ".join(said)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train every algorithm's recipe on the tiny model.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="train only runs whose name has this in it")
    parser.add_argument("--keep", type=Path, help="an earlier page, of which rows are taken over")
    chosen = parser.parse_args()
    every = runs(chosen.seed)
    if chosen.at_once:
        train_missing([one for one in every.values() if chosen.only in one.label], chosen.at_once)
    missing = [label for label, one in every.items() if not done(one)]
    kept = taken_over(chosen.keep, missing) if chosen.keep else {}
    rows = {label: row(label, one) if done(one) else kept.get(label) for label, one in every.items()}
    heads = ["algorithm", "target", "reward", "KL", "fluency", "beta", "entropy", "besides"]
    print(
        INTRODUCTION.format(
            machine=machine(),
            steps=STEPS,
            completions=COMPLETIONS,
            seed=chosen.seed,
            target=TARGET,
            last=LAST,
            dapo=COMPLETIONS // group_size({"kind": "dapo"}),
            pairs=COMPLETIONS // group_size({"kind": "online_dpo"}),
        )
        + table(heads, [cells for cells in rows.values() if cells])
    )
    if kept:
        new = ", ".join(label for label in every if label not in missing)
        print(f"\nThose of {new} were run for this page, the other rows are taken over from an earlier one.")
    wanting = sum(cells is None for cells in rows.values())
    if wanting:
        print(f"\n**{wanting} of {len(every)} runs are not done yet.**")
    return 1 if wanting else 0


if __name__ == "__main__":
    sys.exit(main())
