"""What computing a prompt once for its group saves: forward + backward of an update by each path, SmolLM2-135M, fp32.

    python -m benchmarks.shared_prompt [--prompts 2] [--group 8] [--length 192] [--tokens 32] [--rounds 3] [--threads 2]

The loss has log-probs and the exact KL to a frozen reference, so the fused head is in it. All paths do the same work
on the same rollout and alternate within each round; medians, and medians of the rounds' ratios of plain to each. That
they give the same numbers is checked first: the largest difference of a log-prob, and of a gradient relative to the
largest, against plain.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from benchmarks.fused import measure
from benchmarks.runs import processor, table

from kleash.models.load import load
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.tensors import ReferenceStates, Rollout

WAYS: tuple[PathName, ...] = ("plain", "packed", "cached", "two_stage")
MATRICES, HEAD = 106_168_320, 28_311_552  # weights of SmolLM2's body in matrices, and of its head


def rollout(prompts: int, group: int, length: int, tokens: int) -> Rollout:
    """Random tokens, nothing padded, no completion ended."""
    torch.manual_seed(0)
    rows = prompts * group
    return Rollout(
        prompt_ids=torch.randint(100, 40_000, (prompts, length)),
        prompt_mask=torch.ones(prompts, length, dtype=torch.bool),
        completion_ids=torch.randint(100, 40_000, (rows, tokens)),
        mask=torch.ones(rows, tokens, dtype=torch.bool),
        group=torch.arange(prompts).repeat_interleave(group),
        sampler=torch.zeros(rows, tokens),
        truncated=torch.ones(rows, dtype=torch.bool),
    )


def positions(work: Rollout, path: PathName) -> int:
    """Tokens that go through the body: the last of a completion is not fed."""
    prompts, completions = work.prompt_ids.numel(), work.completion_ids[:, 1:].numel()
    return completions + (prompts * len(work.group) // len(work.prompt_ids) if path == "plain" else prompts)


def gflop(work: Rollout, path: PathName) -> float:
    """Of the body forward and backward, without attention's scores, and of the head's six products."""
    return (6 * MATRICES * positions(work, path) + 12 * HEAD * work.mask.sum().item()) / 1e9


@torch.no_grad()
def frozen(policy: Policy, work: Rollout) -> ReferenceStates:
    """A reference close to the policy, so that the KL and its gradient are not 0."""
    head = policy.head()
    return ReferenceStates(1.01 * policy.hidden(work), replace(head, weight=head.weight.clone()))


def update(policy: Policy, work: Rollout, reference: ReferenceStates, path: PathName) -> torch.Tensor:
    """Forward + backward; the log-probs."""
    policy.zero_grad()
    look = policy(work, reference=reference, path=path)
    assert look.kl is not None
    (look.kl - look.logprobs).sum().backward()
    return look.logprobs.detach()


def differences(runs: Sequence[Callable[[], torch.Tensor]], policy: Policy) -> list[tuple[float, float]]:
    """Of each run from the first: log-probs, and gradients relative to the largest."""
    found: list[tuple[float, float]] = []
    first: tuple[torch.Tensor, list[torch.Tensor]] | None = None
    for run in runs:
        logprobs = run()
        grads = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
        first = first or (logprobs, grads)
        largest = max(float(g.abs().max()) for g in first[1])
        off = max(float((a - b).abs().max()) for a, b in zip(grads, first[1], strict=True))
        found.append((float((logprobs - first[0]).abs().max()), off / largest))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"prompts": 2, "group": 8, "length": 192, "tokens": 32, "rounds": 3, "threads": 2}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    policy = load(ModelSpec("kleash:smollm2", device="cpu")).policy
    work = rollout(given.prompts, given.group, given.length, given.tokens)
    reference = frozen(policy, work)
    runs = {way: lambda way=way: update(policy, work, reference, way) for way in WAYS}
    off = differences(list(runs.values()), policy)
    seconds = measure(dict(runs), given.rounds)
    rows = [
        [
            way,
            str(positions(work, way)),
            f"{gflop(work, way):.0f}",
            f"{statistics.median(taken):.1f} s",
            f"{statistics.median(a / b for a, b in zip(seconds['plain'], taken, strict=True)):.2f}",
            f"{logprob:.0e}",
            f"{grad:.0e}",
        ]
        for (way, taken), (logprob, grad) in zip(seconds.items(), off, strict=True)
    ]
    print(
        f"N={given.prompts} G={given.group} P={given.length} T={given.tokens}, {given.threads} threads, {processor()}\n"
    )
    print(table(["path", "tokens", "GFLOP", "median", "plain / it", "log-probs off", "gradients off"], rows))


if __name__ == "__main__":
    main()
