"""Where does training end? Every algorithm and penalty, to convergence on a tabular problem: docs/runs/posterior.md.

    python -m benchmarks.posterior > docs/runs/posterior.md

Exits with 1 if one does not end where theory says.
"""

import sys
from typing import Any

import torch
from benchmarks.runs import table
from tests.training.tabular_loop import (
    ALGORITHMS,
    BETA,
    FORWARD,
    REVERSE,
    STEPS,
    WHOLE,
    S,
    Tabular,
    backwards,
    converged,
    forward_per_position,
    kl,
    posterior,
    reverse_per_position,
    sampled,
    std_by_group,
)

from kleash.algorithms import GRPO, PPO, RLOO, ReinforcePP, ReMax

#: A policy that is to end somewhere ends within so many nats of it: expectations, and samples.
EXACT, SAMPLED = 1e-8, 1e-3
#: Completions of each sampled step, and the seeds.
COMPLETIONS, SEEDS = 1024, range(5)
DRAWN: dict[str, Any] = {
    "rloo": RLOO(group_size=4),
    "grpo": GRPO(group_size=4),
    "reinforce++, its defaults": ReinforcePP(),
    "remax, its defaults": ReMax(),
    "ppo, its defaults": PPO(),
}

INTRODUCTION = f"""\
# Where training ends

Made by `python -m benchmarks.posterior > docs/runs/posterior.md` (`make bench-posterior`; CPU, float64, a minute). The
command fails if a policy does not end where theory says. What it means: [posterior.md](../posterior.md).

A tabular policy over {S} sequences (V = 3 tokens, T = 3 steps, an end token), a reward without structure from −1 to 1,
beta {BETA}; the policy starts {{start:.2f}} nats from the posterior. {STEPS} updates by Adam through the trainer's own
`learn`. In the first table an update sees every ordered group, weighted by its probability: the expected gradient.
"""


def ends() -> dict[str, tuple[dict[str, Any], torch.Tensor]]:
    """The penalties by where they should end, and log-probs of that end, by solvers that know nothing of kleash."""
    return {
        "the posterior": (WHOLE, posterior()[0]),
        "the reverse KL at each position": (REVERSE, backwards(reverse_per_position)),
        "the forward KL at each position": (FORWARD, backwards(forward_per_position)),
    }


def expected() -> tuple[str, list[str]]:
    """The table of exact expectations, and what did not end where it should."""
    target, rows = posterior()[0], []
    off: dict[str, float] = {}
    for name, algorithm in ALGORITHMS.items():
        row = [name]
        for penalties, end in ends().values():
            for penalty, made in penalties.items():
                logits = converged(algorithm, made)
                row.append(shown(kl(logits, target)))
                off[f"{name}, {penalty}"] = kl(logits, end)
        rows.append(row)
    where = [f"{penalty} → {end}" for end, (penalties, _) in ends().items() for penalty in penalties]
    logits = converged(GRPO(group_size=2, std="group"), WHOLE["exact"])
    off["std by group"] = kl(logits, std_by_group())
    failed = [f"{name}: {x:.1e} nats from its end" for name, x in off.items() if not x < EXACT]
    return (
        f"\n## KL(policy‖posterior) at the end, nats per sequence\n\n`<` is below {EXACT:.0e}.\n\n"
        f"{table(['algorithm', *(text.split(' → ')[0] for text in where)], rows)}\n\n"
        f'GRPO with `std = "group"` in pairs, penalty `exact`: {kl(logits, target):.3f}.\n\n'
        f"Where theory says that each ends, solved apart from kleash by scipy and by recursion:\n\n"
        + "".join(f"- {text}\n" for text in where)
        + f"- std by group → the posterior of who wins\n\nThe farthest of the {len(off)} from there: "
        f"KL {max(off.values()):.1e}.\n",
        failed,
    )


def drawn() -> tuple[str, list[str]]:
    """The same from samples, penalty exact."""
    rows, failed = [], []
    for name, algorithm in DRAWN.items():
        found = [from_samples(algorithm, seed) for seed in SEEDS]
        failed += [f"{name}, sampled: {x:.1e}" for x in found if not x < SAMPLED]
        rows.append([name, *(f"{x:.1e}" for x in found)])
    heads = ["algorithm", *(f"seed {seed}" for seed in SEEDS)]
    return (
        f"\n## The same from samples\n\nKL(policy‖posterior), `exact`, {COMPLETIONS} completions a step.\n\n"
        f"{table(heads, rows)}\n",
        failed,
    )


def from_samples(algorithm: Any, seed: int) -> float:
    generator, groups = torch.Generator().manual_seed(seed), COMPLETIONS // algorithm.group_size
    logits = converged(algorithm, WHOLE["exact"], lambda p: sampled(p, groups, algorithm.group_size, generator))
    return kl(logits, posterior()[0])


def shown(x: float) -> str:
    return "<" if abs(x) < EXACT else f"{x:.1e}" if x < 1e-3 else f"{x:.4f}"


def main() -> int:
    start = kl(Tabular().logits.detach(), posterior()[0])
    parts = [expected(), drawn()]
    print(INTRODUCTION.format(start=start) + "".join(text for text, _ in parts), end="")
    failed = [what for _, found in parts for what in found]
    for what in failed:
        print(f"FAILED: {what}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
