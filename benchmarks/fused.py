"""What `kleash.kl.fused` costs beyond the matrix products it cannot avoid, in time and in memory.

    python benchmarks/fused.py [--tokens 1024] [--hidden 576] [--vocab 49152] [--threads 2] [--rounds 7]

Forward is set against its two head products (policy and reference), forward + backward against its six (those two, made
again, and one each for the hidden states and the weight). The products are timed twice, over the whole plane and over
fused's own tiles, and the faster of the two is the yardstick. Everything alternates within each round; medians of the
rounds and medians of the per-round ratios are printed. Then the same with hidden states and heads in bfloat16: on a CPU
fused widens them, for its results are float32, so the yardstick is the same, and the products that bfloat16 itself
makes, with results in bfloat16, stand beside it. Memory is the peak of a fresh process above its inputs (Linux).
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kleash.kl.fused import CPU_CHUNK_BYTES, fused
from kleash.kl.moments import Also
from kleash.kl.tiles import Grid
from kleash.tensors import Head


class Problem:
    """Two models' hidden states and heads, fp32; the losses get them as `store` has put them down."""

    def __init__(self, tokens: int, hidden: int, vocab: int) -> None:
        torch.manual_seed(0)
        self.hidden, self.ref_hidden = torch.randn(2, tokens, hidden).unbind()
        self.weight = torch.randn(vocab, hidden) / hidden**0.5
        self.ref_weight = self.weight + 0.01 * torch.randn_like(self.weight)
        self.targets = torch.randint(vocab, (tokens,))
        self.grid = Grid(tokens, vocab, CPU_CHUNK_BYTES // 4)
        self.store(torch.float32)

    def store(self, dtype: torch.dtype) -> None:
        self.stored = dtype
        self.own = self.hidden.to(dtype), self.weight.to(dtype)
        self.other = self.ref_hidden.to(dtype), self.ref_weight.to(dtype)

    def given(self, backward: bool) -> tuple[torch.Tensor, ...]:
        """Hidden states and head of the policy, then of the reference, as stored."""
        return (*(x.detach().requires_grad_(backward) for x in self.own), *self.other)

    def fused(self, backward: bool, forward_kl: bool = False, order: float | None = None) -> None:
        hidden, weight, ref_hidden, ref_weight = self.given(backward)
        vocab = len(weight)
        found = fused(
            hidden,
            Head(weight, None, vocab),
            self.targets,
            ref_hidden=ref_hidden,
            ref_head=Head(ref_weight, None, vocab),
            also=Also(forward_kl, order),
        )
        if backward:
            distance = found.kl if order is None else found.renyi
            assert distance is not None
            (distance - found.logprobs).sum().backward()

    def whole_products(self, backward: bool, dtype: torch.dtype = torch.float32) -> Callable[[], None]:
        plane = torch.empty(len(self.hidden), len(self.weight), dtype=dtype)
        hidden, weight = self.hidden.to(dtype), self.weight.to(dtype)
        ref_hidden, ref_weight = self.ref_hidden.to(dtype), self.ref_weight.to(dtype)
        d_hidden, d_weight = torch.empty_like(hidden), torch.empty_like(weight)

        def run() -> None:
            for _ in range(2 if backward else 1):
                torch.mm(hidden, weight.T, out=plane)
                torch.mm(ref_hidden, ref_weight.T, out=plane)
            if backward:
                torch.mm(plane, weight, out=d_hidden)
                torch.mm(plane.T, hidden, out=d_weight)

        return run

    def tiled_products(self, backward: bool) -> Callable[[], None]:
        tile = torch.empty(self.grid.tile)
        d_hidden, d_weight = torch.zeros_like(self.hidden), torch.zeros_like(self.weight)

        def run() -> None:
            for cols in self.grid.cols():
                for rows in self.grid.rows():
                    z = tile.flatten()[: (rows.stop - rows.start) * (cols.stop - cols.start)]
                    z = z.view(rows.stop - rows.start, cols.stop - cols.start)
                    for _ in range(2 if backward else 1):
                        torch.mm(self.hidden[rows], self.weight[cols].T, out=z)
                        torch.mm(self.ref_hidden[rows], self.ref_weight[cols].T, out=z)
                    if backward:
                        d_hidden[rows].addmm_(z, self.weight[cols])
                        d_weight[cols].addmm_(z.T, self.hidden[rows])

        return run

    def plain(self, backward: bool) -> None:
        """The same numbers from two whole log-softmaxes."""
        hidden, weight, ref_hidden, ref_weight = self.given(backward)
        logp = (hidden @ weight.T).float().log_softmax(-1)
        logq = (ref_hidden @ ref_weight.T).float().log_softmax(-1)
        kl = (logp.exp() * (logp - logq)).sum(-1)
        if backward:
            (kl - logp.gather(-1, self.targets[:, None]).squeeze(-1)).sum().backward()


def measure(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, run in turn, `rounds` times after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for k in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if k:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def report_time(problem: Problem, backward: bool, rounds: int) -> None:
    runs: dict[str, Callable[[], object]] = {
        "products, whole plane": problem.whole_products(backward),
        "products, fused's tiles": problem.tiled_products(backward),
        "fused": lambda: problem.fused(backward),
        "fused, both KLs": lambda: problem.fused(backward, forward_kl=True),
        "fused, and Rényi": lambda: problem.fused(backward, order=2.0),
        "plain log_softmax": lambda: problem.plain(backward),
    }
    if problem.stored != torch.float32:
        runs["products in bfloat16"] = problem.whole_products(backward, problem.stored)
    seconds = measure(runs, rounds)
    yardstick = [min(pair) for pair in zip(*list(seconds.values())[:2], strict=True)]
    what = f"{'forward + backward' if backward else 'forward'}, {str(problem.stored).removeprefix('torch.')}"
    print(f"\n{what}: median seconds, and × the faster products of its round")
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(taken, yardstick, strict=True))
        print(f"  {name:26s} {statistics.median(taken):7.3f} s  {ratio:5.2f}")


def report_memory(arguments: list[str], tokens: int, vocab: int) -> None:
    print("\npeak memory of forward + backward above the inputs, in MB (the gradients are in it)")
    for m in (tokens // 4, tokens, tokens * 2):
        peaks = [
            subprocess.run(
                [sys.executable, __file__, *arguments, "--tokens", str(m), "--memory", what],
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
            for what in ("fused", "plain")
        ]
        print(
            f"  {m:6d} tokens: fused {peaks[0]:>6s}, plain {peaks[1]:>6s}; one plane of logits is {m * vocab * 4 >> 20}"
        )


def peak(problem: Problem, what: str) -> None:
    """Print the high-water mark of resident memory above its level before, in MB (Linux: writing 5 resets the mark)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident()
    problem.fused(backward=True) if what == "fused" else problem.plain(backward=True)
    print((resident() - before) >> 10)


def resident() -> int:
    """The high-water mark of resident memory, in kB."""
    return int(next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("tokens", 1024), ("hidden", 576), ("vocab", 49152), ("threads", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--memory", choices=("fused", "plain"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    problem = Problem(given.tokens, given.hidden, given.vocab)
    if given.memory:
        return peak(problem, given.memory)
    print(
        f"{given.tokens} tokens, H={given.hidden}, V={given.vocab}, {given.threads} threads, torch {torch.__version__}"
    )
    print(f"tiles of {problem.grid.tile}")
    for stored in (torch.float32, torch.bfloat16):
        problem.store(stored)
        for backward in (False, True):
            report_time(problem, backward, given.rounds)
    report_memory([f"--{n}={getattr(given, n)}" for n in ("hidden", "vocab", "threads")], given.tokens, given.vocab)
    return None


if __name__ == "__main__":
    main()
