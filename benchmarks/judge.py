"""What judges do: docs/runs/judge.md.

    python -m benchmarks.judge > docs/runs/judge.md

Planted judges train the tiny model; a planted position bias is measured; SmolLM2 judges in this process and behind
`transformers serve` (pip install "transformers[serving]"). What is done in runs/bench-judge is not done again. Exits
with 1 while something is missing.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.judge_server import PAIRS, measure, notes, plain
from benchmarks.runs import done, machine, planned, table, train_missing

from kleash.demo.side_by_side import Planned
from kleash.report.log import Log, load, mean
from kleash.rewards.judge import Judge
from kleash.training.label import label

OUT = Path("runs/bench-judge")
STEPS, LAST, SEEDS = 40, 10, (0, 1, 2)
TASTES = ("shorter", "longer", "coin")
HEAD = """\
# Judges

Made by `python -m benchmarks.judge > docs/runs/judge.md` (`make bench-judge`); what is finished is kept
and not done again.

{machine}

"""


def run_of(taste: str, seed: int) -> Planned:
    """GRPO on the tiny model; a sample's score is the mean probability of being preferred to another of its group."""
    args = {"rubric": f"the {taste} one", "cache": False}
    rewards = [{"use": f"judge:benchmarks/planted_judges.py:{taste}", "args": args}]
    name = f"{taste} seed {seed}"
    return planned(
        OUT / name.replace(" ", "-"), name, steps=STEPS, seed=seed, rewards=rewards, kl={"target": "4 nats/sequence"}
    )


def effect() -> tuple[str, list[str]]:
    """The section on planted judges, and the runs that are missing."""
    runs = {(taste, seed): run_of(taste, seed) for taste in TASTES for seed in SEEDS}
    missing = [run.label for run in runs.values() if not done(run)]
    text = (
        "## A planted judge moves what it judges\n\n"
        f"The tiny model, GRPO, full fine-tuning at 1e-3, {STEPS} steps of 8 prompts × 8 completions of at most 32 "
        "tokens, a target of 4 nats/sequence. The judge (`benchmarks/planted_judges.py`) prefers the answer with fewer "
        "words, that with more, or one by a coin that always falls the same way for the same text. A sample's score is "
        "the mean probability of beating the others of its prompt, both orders asked. A KL charge alone may change "
        "lengths too, which is what the coin is for. The first beta is 0.05, and a target holds only once the "
        f"controller has found its beta: where the KL stands above 4, {STEPS} steps were too few for that.\n\n"
    )
    if missing:
        return f"{text}**Not done yet: {', '.join(missing)}.**\n", missing
    rows, change = [], {}
    for (taste, seed), run in runs.items():
        log = load(run.path)
        before, after = _length(log, {0}), _length(log, set(range(STEPS - LAST + 1, STEPS + 1)))
        last = [step for step in log.steps if step.step > STEPS - LAST]
        kl = mean(step.kl_ref.value for step in last if step.kl_ref) or 0.0
        rows.append([taste, str(seed), f"{before:.1f}", f"{after:.1f}", f"{kl:.2f}"])
        change.setdefault(taste, []).append(after - before)
    heads = ["prefers", "seed", "tokens at step 0", f"tokens, last {LAST} steps", "KL, nats/sequence"]
    said = ", ".join(f"{taste} {sum(c) / len(c):+.1f}" for taste, c in change.items())
    works = max(change["shorter"]) < min(change["coin"]) and max(change["coin"]) < min(change["longer"])
    verdict = "**Every seed goes the judge's way.**" if works else "**Not every seed goes the judge's way.**"
    return f"{text}{table(heads, rows)}\n\n{verdict} Change of the mean length in tokens: {said}.\n", []


def _length(log: Log, steps: set[int]) -> float:
    return mean(step.length for step in log.steps if step.step in steps) or 0.0


def bias() -> str:
    """The section on a planted position bias."""
    pairs = OUT / "bias.jsonl"
    rows = [{"prompt": f"note {i}", "a": a, "b": b} for i, (a, b) in enumerate(notes() * 2)]
    lines = [json.dumps(row | {"a": f"{row['a']} {i}"}) for i, row in enumerate(rows)]
    pairs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    judge = Judge.load("benchmarks/planted_judges.py:hasty", {"rubric": "the shorter one"})
    told = label(pairs, judge, OUT / "bias-labelled.jsonl")
    found = told.judge.bias
    assert found is not None
    inside = "inside" if found.low <= 0.2 <= found.high else "outside"
    printed = "\n".join(told.lines()[:4])
    return (
        "## A planted position bias\n\n"
        "A judge that prefers the answer with fewer words, and in a fifth of the pairs takes the first whatever it is, "
        f"labels {len(rows)} pairs. What `kleash label` prints:\n\n```\n{printed}\n```\n\n"
        f"The planted 20 % is {inside} the interval ({found.low:.1%} to {found.high:.1%}). How often such an interval "
        "holds the truth: 92 to 98 % of 400 trials in `tests/rewards/judge/test_bias.py`.\n"
    )


def server() -> tuple[str, list[str]]:
    """The section on a real server, and whether it is missing."""
    text = (
        "## The same judge here and behind a server\n\n"
        f"SmolLM2-135M-Instruct in fp32, in this process and behind `transformers serve` on 127.0.0.1, asked {PAIRS} "
        f"pairs of notes in both orders and {PAIRS} grades. `transformers serve` gives no log-probs, so its verdict is "
        "its greedy text of one token; here it is the likeliest token, read by the same rule. Without verdict: the "
        "token is none of the allowed words, on both sides.\n\n"
    )
    place = OUT / "server.json"
    if not place.exists():
        return f"{text}**Not done yet: transformers serve.**\n", ["transformers serve"]
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    rows = [
        [s["name"], *(str(s[key]) for key in ("questions", "verdict", "text", "none", "texts")), f"{s['mass']:.3f}"]
        for s in found["same"]
    ]
    heads = ["asked", "questions", "same verdict", "same token", "without verdict here", "different tokens", "mass"]
    k = found["killed"]
    return (
        f"{text}{table(heads, rows)}\n\n"
        f"Seconds: {found['seconds_server']:.0f} by the server with two requests at once, {found['seconds_local']:.0f} "
        "here, one row at a time. *Mass* is the mean probability on the allowed verdicts. A judge of this size goes by "
        "the place and not by the answer, which the position bias of a labelling says in its first line.\n\n"
        f"**Killed in the middle.** A labelling of {k['questions']} questions, whose server was killed after 10 "
        f"verdicts, ended with exit code 2 and wrote no file. The same command with a new server remembered "
        f"{k['remembered']} and asked {k['asked again']}: {k['labelled']} labelled, {k['ties']} ties, {k['failed']} "
        "failed.\n"
    ), []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure judges and print what came of it.")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="runs at a time; 0: train nothing")
    parser.add_argument("--only", default="", help="do only what has this in its name; the server is called server")
    chosen = parser.parse_args(arguments)
    OUT.mkdir(parents=True, exist_ok=True)
    runs = [run_of(taste, seed) for seed in SEEDS for taste in TASTES]
    if chosen.at_once:
        train_missing([run for run in runs if chosen.only in run.label], chosen.at_once)
        if chosen.only in "server" and not (OUT / "server.json").exists():
            (OUT / "server.json").write_text(json.dumps(plain(measure(OUT))), encoding="utf-8")
    (effects, untrained), (served, unserved) = effect(), server()
    print(HEAD.format(machine=machine()) + "\n".join([effects, bias(), served]), end="")
    for name in (missing := [*untrained, *unserved]):
        print(f"not done: {name}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
