"""Where one packed row stops being the quicker way: the body's forward + backward, SmolLM2-135M, fp32.

    python -m benchmarks.packed_or_cached [--prompt 64] [--group 8] [--rounds 3] [--threads 2]

One prompt, and completions of more and more tokens. Packed, attention costs (P + G·T)²; cached, a completion looks at
P + T keys, and the prompt's keys and values are copied for each. The ratio of operations is what the plan goes by
(`models/plan.py`); the ratio of seconds, alternating in each round, says at which ratio it should leave packed.
"""

import argparse
import statistics
from functools import partial

import torch
from benchmarks.fused import measure
from benchmarks.runs import processor, table
from benchmarks.shared_prompt import rollout

from kleash.models.load import load
from kleash.models.memory import size_of
from kleash.models.paths import PathName
from kleash.models.plan import Work, operations
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.tensors import Rollout

TOKENS = (16, 32, 64, 128, 192, 256)
WAYS: tuple[PathName, ...] = ("packed", "cached")


def body(policy: Policy, work: Rollout, path: PathName) -> None:
    """Forward + backward without the head."""
    policy.zero_grad()
    policy.hidden(work, path).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"prompt": 64, "group": 8, "rounds": 3, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    loaded = load(ModelSpec("kleash:smollm2", device="cpu"))
    policy, size = loaded.policy, size_of(loaded.policy, loaded.paths)
    rows = []
    for tokens in TOKENS:
        work = rollout(1, given.group, given.prompt, tokens)
        seconds = measure({way: partial(body, policy, work, way) for way in WAYS}, given.rounds)
        planned = Work(prompts=1, groups=1, group_size=given.group, prompt=given.prompt, length=tokens)
        arithmetic = operations(size, planned, "packed") / operations(size, planned, "cached")
        packed, cached = (statistics.median(seconds[way]) for way in WAYS)
        ratio = statistics.median(a / b for a, b in zip(*(seconds[way] for way in WAYS), strict=True))
        length = str(given.prompt + given.group * (tokens - 1))
        rows.append([str(tokens), length, f"{arithmetic:.2f}", f"{packed:.2f} s", f"{cached:.2f} s", f"{ratio:.2f}"])
    print(f"P={given.prompt} G={given.group}, {given.threads} threads, {processor()}\n")
    print(table(["T", "tokens", "operations, packed / cached", "packed", "cached", "seconds, packed / cached"], rows))


if __name__ == "__main__":
    main()
