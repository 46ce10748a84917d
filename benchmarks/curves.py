"""How an update's cost grows, on SmolLM2-135M in fp32: writes docs/runs/curves.md and the charts beside it.

    python -m benchmarks.curves [--rounds 2] [--threads 2]

Seconds of forward + backward (fused head and exact KL in it) against the tokens that go through the body; against the
group size at fixed prompts, packed and with the prompt repeated; and the peak memory of the head's loss, fused and by
two whole log-softmaxes, against tokens × vocabulary. Linear, flat, and linear in the completions alone: as they should.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from benchmarks.fused import measure
from benchmarks.runs import processor, table
from benchmarks.shared_prompt import frozen, gflop, positions, rollout, update

from kleash.models.load import load
from kleash.models.paths import PathName
from kleash.models.policy import Policy
from kleash.models.spec import ModelSpec
from kleash.report.charts import Chart, Series, standalone

PAGE, CHARTS = Path("docs/runs/curves.md"), Path("docs/runs/curves")
PROMPTS, GROUP, LENGTH = 2, 8, 192
COMPLETIONS = (8, 16, 32, 64)  # tokens each, for the curve over tokens
GROUPS, GROUP_TOKENS, REPEATED_UP_TO = (2, 4, 8, 16, 32), 16, 8  # the prompt repeated takes minutes beyond 8
PLANES = ((512, 8192), (1024, 8192), (1024, 32768), (2048, 32768), (4096, 32768), (4096, 65536))
WHOLE_UP_TO = 1 << 26  # elements of a plane of which the plain loss is measured: it keeps several
NARROW = 64  # hidden size of the memory curve: the weights and their gradient stay small

Shape = tuple[PathName, int, int]  # path, group size, tokens of a completion


def seconds(policy: Policy, shapes: Sequence[Shape], rounds: int) -> dict[Shape, tuple[int, float, float]]:
    """Tokens, GFLOP and median seconds of an update of each shape, alternating."""
    work = {shape: rollout(PROMPTS, shape[1], LENGTH, shape[2]) for shape in shapes}
    known = {shape: frozen(policy, one) for shape, one in work.items()}
    runs = {shape: lambda shape=shape: update(policy, work[shape], known[shape], shape[0]) for shape in shapes}
    taken = measure(dict(runs), rounds)
    return {s: (positions(work[s], s[0]), gflop(work[s], s[0]), statistics.median(taken[s])) for s in shapes}


def peak(tokens: int, vocab: int, what: str, threads: int) -> float:
    """MB above the inputs, in a process of its own."""
    sizes = {"tokens": tokens, "vocab": vocab, "hidden": NARROW, "threads": threads}
    command = [sys.executable, "-m", "benchmarks.fused", *(f"--{k}={v}" for k, v in sizes.items()), "--memory", what]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def over_tokens(found: dict[Shape, tuple[int, float, float]]) -> str:
    rows = [(n, flop, s) for (path, g, _), (n, flop, s) in found.items() if path == "packed" and g == GROUP]
    draw(
        "time",
        Chart(
            title="seconds of an update",
            unit="s",
            x=[n for n, _, _ in rows],
            series=[Series(name="packed", y=[s for _, _, s in rows])],
            zero=True,
            x_label="tokens through the body",
        ),
    )
    lines = [[str(n), f"{flop:.0f}", f"{s:.2f} s", f"{flop / s:.0f}"] for n, flop, s in rows]
    return table(["tokens", "GFLOP", "median", "GFLOP/s"], lines)


def over_groups(found: dict[Shape, tuple[int, float, float]]) -> str:
    shared: dict[int, tuple[int, float, float]] = {}
    repeated: dict[int, tuple[int, float, float]] = {}
    for (path, group, tokens), cost in found.items():
        if tokens == GROUP_TOKENS:
            (shared if path == "packed" else repeated)[group] = cost
    draw(
        "group",
        Chart(
            title="seconds of an update",
            unit="s",
            x=GROUPS,
            series=[
                Series(name="packed", y=[shared[g][2] for g in GROUPS]),
                Series(name="prompt repeated", y=[repeated[g][2] if g in repeated else None for g in GROUPS]),
            ],
            zero=True,
            x_label="completions of a prompt",
        ),
    )
    lines = [[str(g), *(cell(where.get(g)) for where in (shared, repeated))] for g in GROUPS]
    return table(["G", "packed", "prompt repeated"], lines)


def cell(cost: tuple[int, float, float] | None) -> str:
    return "not run" if cost is None else f"{cost[2]:.2f} s ({cost[0]} tokens, {cost[1]:.0f} GFLOP)"


def memory(threads: int) -> str:
    fused = [peak(m, v, "fused", threads) for m, v in PLANES]
    whole = [peak(m, v, "plain", threads) if m * v <= WHOLE_UP_TO else None for m, v in PLANES]
    draw(
        "memory",
        Chart(
            title="peak memory of the head's loss, forward and backward",
            unit="MB",
            x=[m * v / 1e6 for m, v in PLANES],
            series=[Series(name="fused", y=fused), Series(name="two whole log-softmaxes", y=whole)],
            zero=True,
            x_label="tokens × vocabulary, millions",
        ),
    )
    lines = [
        [str(m), str(v), f"{m * v * 4 >> 20} MB", f"{a:.0f} MB", "not run" if b is None else f"{b:.0f} MB"]
        for (m, v), a, b in zip(PLANES, fused, whole, strict=True)
    ]
    return table(["tokens", "vocabulary", "one plane of logits", "fused", "two whole log-softmaxes"], lines)


def draw(name: str, chart: Chart) -> None:
    CHARTS.mkdir(parents=True, exist_ok=True)
    (CHARTS / f"{name}.svg").write_text(standalone(chart) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    shapes: list[Shape] = [("packed", GROUP, n) for n in COMPLETIONS]
    shapes += [("packed", g, GROUP_TOKENS) for g in GROUPS if ("packed", g, GROUP_TOKENS) not in shapes]
    shapes += [("plain", g, GROUP_TOKENS) for g in GROUPS if g <= REPEATED_UP_TO]
    found = seconds(load(ModelSpec("kleash:smollm2", device="cpu")).policy, shapes, given.rounds)
    PAGE.write_text(
        PAGE_TEXT.format(
            machine=f"{given.threads} threads of {processor()}, torch {torch.__version__}, {given.rounds} rounds",
            time=over_tokens(found),
            group=over_groups(found),
            memory=memory(given.threads),
        ),
        encoding="utf-8",
    )


PAGE_TEXT = f"""\
# How the cost grows

Made by `python -m benchmarks.curves` (`make bench-curves`). {{machine}}, alternating; medians. SmolLM2-135M in
fp32; an update is forward + backward with the exact KL to a reference, N = {PROMPTS} prompts of P = {LENGTH} tokens.
GFLOP counts the products of body and head, without attention's scores.

## Time against tokens

G = {GROUP}, completions of {", ".join(map(str, COMPLETIONS))} tokens, packed:

{{time}}

![seconds against tokens](curves/time.svg)

## Time against the group

Completions of {GROUP_TOKENS} tokens. Packed, a further completion costs its own tokens; with the prompt repeated it
costs a prompt as well.

{{group}}

![seconds against the group size](curves/group.svg)

## Memory against tokens × vocabulary

Peak of forward + backward of the head's loss above its inputs, hidden size {NARROW}, each in a process of its own.
The fused head's is its tiles and the gradient of the head, which grows with the vocabulary alone.

{{memory}}

![memory against tokens × vocabulary](curves/memory.svg)
"""


if __name__ == "__main__":
    main()
