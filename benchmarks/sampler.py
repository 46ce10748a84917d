"""The sampler against transformers' `generate` doing the same work, on SmolLM2-135M in fp32.

    python -m benchmarks.sampler [--threads 2] [--rounds 5] [--compiled]

Two prompts of P tokens, eight completions each of exactly 32 tokens, temperature 1, nothing truncated, no early end.
`generate` is tried with its own growing cache and with its static one, under num_return_sequences = 8, which reads
every prompt eight times; it writes no log-probs down, the sampler does. All alternate within each round; medians of
the rounds, and medians of the rounds' ratios. Ends with the time of the model's products alone, which none can beat,
and that of the same products with weights laid out in advance. --compiled: the decoding step under torch.compile.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.fused import measure
from benchmarks.runs import processor, table
from torch import nn

from kleash.models.load import load
from kleash.models.policy import Policy
from kleash.models.sampling import Sampling, sample
from kleash.models.spec import ModelSpec
from kleash.models.stopping import Ends

GROUP, TOKENS, PROMPTS = 8, 32, 2


def draw_prompts(length: int) -> list[list[int]]:
    torch.manual_seed(length)
    return torch.randint(100, 40_000, (PROMPTS, length)).tolist()


def ours(policy: Policy, prompts: list[list[int]], never: int) -> Callable[[], object]:
    """`never`: an end token that is never drawn."""
    settings, ends = Sampling(max_new_tokens=TOKENS), Ends((never,), 0)
    return lambda: sample(
        policy, prompts, settings, ends, group_size=GROUP, seed=0, step=0, prompt_index=list(range(PROMPTS))
    )


def theirs(policy: Policy, prompts: list[list[int]], **options: Any) -> Callable[[], object]:
    ids = torch.tensor(prompts)

    def run() -> object:
        with torch.no_grad():
            found = policy.causal.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=GROUP,
                max_new_tokens=TOKENS,
                eos_token_id=None,
                pad_token_id=0,
                **options,
            )
        assert found.shape == (PROMPTS * GROUP, ids.shape[1] + TOKENS)
        return found

    return run


def compare(policy: Policy, length: int, rounds: int) -> list[list[str]]:
    prompts = draw_prompts(length)
    runs = {
        "kleash": ours(policy, prompts, policy.rows),
        "generate": theirs(policy, prompts),
        "generate, static cache": theirs(policy, prompts, cache_implementation="static", disable_compile=True),
    }
    seconds = measure(runs, rounds)
    per_token = PROMPTS * GROUP * TOKENS
    return [
        [
            str(length),
            name,
            f"{statistics.median(taken):.2f} s",
            f"{per_token / statistics.median(taken):.0f}",
            f"{statistics.median(a / b for a, b in zip(taken, seconds['kleash'], strict=True)):.2f}",
        ]
        for name, taken in seconds.items()
    ]


@torch.no_grad()
def products(policy: Policy, rows: int) -> dict[str, Callable[[], object]]:
    """All matrix products of one decoding step, as the model does them and with weights packed in advance."""
    weights = [m.weight for m in policy.body.modules() if isinstance(m, nn.Linear)] + [policy.head().weight]
    packed = [torch.ops.mkl._mkl_reorder_linear_weight(w, rows) for w in weights]
    inputs = {w.shape[1]: torch.randn(rows, w.shape[1]) for w in weights}

    def plain() -> None:
        for w in weights:
            inputs[w.shape[1]] @ w.T

    def ahead() -> None:
        for w, p in zip(weights, packed, strict=True):
            torch.ops.mkl._mkl_linear(inputs[w.shape[1]], p, w, None, rows)

    return {
        "the products of a step": torch.no_grad()(plain),
        "the same, weights packed": torch.no_grad()(ahead),
        "packing them": lambda: [torch.ops.mkl._mkl_reorder_linear_weight(w.detach(), rows) for w in weights],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    policy = load(ModelSpec("kleash:smollm2", device="cpu")).policy
    print(f"{given.threads} threads, {processor()}, torch {torch.__version__}\n")
    rows = [row for length in (200, 5) for row in compare(policy, length, given.rounds)]
    print(table(["P", "", "median", "tokens/s", "× kleash"], rows))
    for count in (PROMPTS * GROUP, 1):
        print(f"\n{count} rows:")
        for name, taken in measure(products(policy, count), given.rounds).items():
            print(f"  {name}: {1000 * statistics.median(taken):.0f} ms")
    if given.compiled:
        compiled(policy, given.rounds)


def compiled(policy: Policy, rounds: int) -> None:
    """`sample` at P = 200, eager and with the model's body compiled; the first call, which compiles, is timed apart."""
    run = ours(policy, draw_prompts(200), policy.rows)
    plain = policy.body.forward
    fast = torch.compile(plain, dynamic=True)

    def switched() -> object:
        policy.body.forward = fast
        try:
            return run()
        finally:
            policy.body.forward = plain

    start = time.perf_counter()
    switched()
    print(f"the first call with torch.compile: {time.perf_counter() - start:.0f} s")
    for name, taken in measure({"eager": run, "compiled": switched}, rounds).items():
        print(f"{name}: {statistics.median(taken):.2f} s")


if __name__ == "__main__":
    main()
