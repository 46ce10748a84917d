"""Does the leash hold for the whole online family, and with LoRA? One setting of PI: docs/runs/leash-family.md.

    python -m benchmarks.leash_family > docs/runs/leash-family.md

Runs that are finished in runs/bench-leash are not done again. Exits with 1 if a run misses a criterion.
"""

import sys
from typing import Any

from benchmarks.leash import Case, bench

LORA: dict[str, Any] = {"rate": 3e-3, "model": {"adapter": {"rank": 16}}}
GROUPS = {"group_size": 8}
FULL, SINGLE, ADAPTED = "Full fine-tuning", "One completion a prompt", "LoRA"

INTRODUCTION = """\
# The leash holds for the whole family

Made by `python -m benchmarks.leash_family > docs/runs/leash-family.md` (`make bench-leash-family`); finished runs are
kept and not done again. The command fails if a run misses a criterion.

{machine}

Work, controller and criteria are those of [leash.md](leash.md): the tiny model, 8 prompts × 8 completions of at most 32
tokens a step, VADER, 120 steps, target 4 nats/sequence, PI with kp {kp:g}, ki {ki:g} and the error clipped to
±{error_clip:g}; a run holds when, over its last third, the mean KL is within 10 % of the target and 90 % of the moving
averages within 25 %. Each algorithm has its own defaults (PPO four epochs a step, with a critic). Nothing is set for
one row alone but the learning rate of LoRA. The first beta is the default one: 0.5 where the algorithm divides the
reward by its group's standard deviation, 0.05 elsewhere. Dr. GRPO is `grpo` with its defaults, and stands in leash.md.
"""

CASES = (
    Case(section=FULL, algorithm="ppo", settings=GROUPS),
    Case(section=FULL, algorithm="ppo", penalty="in_reward k1", settings=GROUPS),
    Case(section=FULL, algorithm="gspo"),
    Case(section=FULL, algorithm="cispo"),
    Case(section=FULL, algorithm="reinforce++", penalty="in_reward k1", settings=GROUPS),
    Case(section=SINGLE, algorithm="reinforce++", penalty="in_reward k1", name="reinforce++, single", slow=True),
    Case(section=ADAPTED, algorithm="grpo", name="grpo, LoRA", **LORA),
    Case(section=ADAPTED, algorithm="ppo", name="ppo, LoRA", settings=GROUPS, **LORA),
)
ONE = """\
8 samples a step instead of 64, which is REINFORCE++'s default, and 240 steps: with an eighth of the samples the policy
takes more steps to reach the target for the first time, and the reading that steers is noisier. """
NOTES = {FULL: "Learning rate 1e-3. ", SINGLE: ONE, ADAPTED: "Rank 16, learning rate 3e-3. "}

if __name__ == "__main__":
    sys.exit(bench(CASES, INTRODUCTION, NOTES))
