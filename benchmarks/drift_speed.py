"""What an audit of drift costs beyond the two forwards it cannot avoid, in time and memory; bfloat16 at its floor.

    python -m benchmarks.drift_speed [--tokens 8192] [--rounds 3] [--threads 2]

SmolLM2 against a copy with a little noise on its weights, both in float32, on the built-in set's reference answers as
plain texts, every token but a text's first scored. Bare: each model's own forward without gradients over the very
batches of the audit, logits and all. Measured: `kleash.drift.compare.measure`. Cached: the same with the base's hidden
states read from disk. The three alternate within each round; the medians of the rounds and of their ratios are printed.
Memory is the peak of the process's own (anonymous) memory above what it held before, over one measurement (Linux).
"""

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kleash.drift.cache import StateCache
from kleash.drift.compare import BATCH_TOKENS, Batch, batches, measure
from kleash.drift.floor import measure_floor
from kleash.drift.sources import Pair, open_pair
from kleash.drift.table import Document
from kleash.drift.texts import Text, builtin_texts, prepared
from kleash.models.rows import Row, rollout_of

#: Of each weight's own standard deviation.
NOISE = 0.02


def moved_pair() -> Pair:
    """SmolLM2 and itself with noise on its matrices."""
    pair = open_pair("kleash:smollm2", "kleash:smollm2")
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in pair.tuned.opened.policy.parameters():
            p.add_(NOISE * p.std() * torch.randn(p.shape, generator=g)) if p.ndim > 1 else None
    return pair


def plain_documents(pair: Pair, tokens: int) -> list[Document]:
    texts = [Text(id=text.id, domain=text.domain, prompt="", answer=text.answer) for text in builtin_texts()]
    return prepared(texts, pair, tokens)


def padded(batch: Batch, pad_id: int) -> dict[str, torch.Tensor]:
    """A batch as a model takes it by itself."""
    rows = [Row([*d.prompt_base, *d.ids], [True] * (1 + len(d.ids))) for d in batch.documents]
    rollout = rollout_of(rows, pad_id, "cpu")
    ids = torch.cat([rollout.prompt_ids, rollout.completion_ids], 1)
    mask = torch.cat([torch.ones_like(rollout.prompt_ids), rollout.mask.long()], 1)
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def bare(pair: Pair, inputs: list[dict[str, torch.Tensor]]) -> None:
    """Both models' own forwards, and nothing of what they give."""
    for given in inputs:
        for side in (pair.base, pair.tuned):
            side.opened.policy.causal(**given, use_cache=False)


def timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def peak_above(run: Callable[[], Any]) -> float:
    """MB of the process's own memory at its peak above what it held before, looked at every few milliseconds.

    Not the resident set: weights are mapped from their file, and the system may take such pages away and bring them
    back meanwhile.
    """
    before, seen, done = status("RssAnon"), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.003):
            seen.append(status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return (max(seen) - before) / 1024


def status(name: str) -> int:
    """kB, of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0])


def speed(pair: Pair, documents: list[Document], rounds: int) -> None:
    pad = pair.base.opened.loaded.ends.pad_id
    inputs = [padded(batch, pad) for batch in batches(documents, BATCH_TOKENS["cpu"])]
    scored, fed = sum(len(d.ids) for d in documents), sum(given["input_ids"].numel() for given in inputs)
    print(f"{len(documents)} documents, {scored} scored tokens, {fed} with padding, {len(inputs)} batches\n")
    times: dict[str, list[float]] = {"two bare forwards": [], "measured": [], "measured, base cached": []}
    with tempfile.TemporaryDirectory() as directory:
        cache = StateCache(root=Path(directory))
        memory = peak_above(lambda: measure(pair, documents, cache=cache))
        size = sum(p.stat().st_size for p in Path(directory).glob("*/*")) / 2**20
        runs = {
            "two bare forwards": lambda: bare(pair, inputs),
            "measured": lambda: measure(pair, documents),
            "measured, base cached": lambda: measure(pair, documents, cache=cache),
        }
        for _ in range(rounds):
            for name, run in runs.items():
                times[name].append(timed(run))
    first = times["two bare forwards"]
    print("| | seconds | of two bare forwards | of measured |\n|---|---|---|---|")
    for name, found in times.items():
        shares = [
            statistics.median(a / b for a, b in zip(found, other, strict=True)) for other in (first, times["measured"])
        ]
        print(f"| {name} | {statistics.median(found):.1f} | {shares[0]:.2f} | {shares[1]:.2f} |")
    print(f"\npeak memory above the two models: {memory:.0f} MB; the base's states on disk: {size:.1f} MB")


def half_precision(documents: int) -> None:
    pair = open_pair("kleash:smollm2", "kleash:smollm2@bfloat16")
    rows = plain_documents(pair, documents)
    floor, reach = measure_floor(pair, rows)
    found = measure(pair, rows, reach=reach)
    assert found.forward is not None
    assert found.same_top1 is not None
    assert found.sure_flip is not None
    print(f"\nbfloat16 against float32, {len(found)} tokens: KL {found.forward.mean():.2e} nats/token, floor ", end="")
    print(", ".join(f"{name} {value:.2e}" for name, value in floor.by.items()), end="; ")
    print(f"{(~found.same_top1).sum()} flips, {found.sure_flip.sum()} of them beyond rounding's reach ({reach:.2e})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    pair = moved_pair()
    speed(pair, plain_documents(pair, asked.tokens), asked.rounds)
    half_precision(asked.tokens // 4)


if __name__ == "__main__":
    main()
