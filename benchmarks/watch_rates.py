"""How often the monitor's rules are wrong, on simulated runs: docs/runs/watch-rates.md.

    python -m benchmarks.watch_rates > docs/runs/watch-rates.md
    python -m benchmarks.watch_rates --seed 1000        # runs that nobody has seen

Rules are tuned on seeds 0 to 249 of the tuned families only.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from benchmarks import simulated_runs
from benchmarks.runs import table
from benchmarks.simulated_runs import GAMED_TUNED, GAMED_UNTUNED, HEALTHY, HEALTHY_UNTUNED, Simulated

from kleash.intervals import wilson
from kleash.monitor import examine

HEALTHY_RUNS, GAMED_RUNS, FIRST = 500, 50, 250

INTRODUCTION = """\
# How often the monitor is wrong

Made by `python -m benchmarks.watch_rates > docs/runs/watch-rates.md`; `--seed N` draws others.

Simulated logs of 40 to 600 rows as kleash, TRL, verl and a PPO trainer write them, with what each of them logs and no
more (`benchmarks/simulated_runs.py`). Their noise, its autocorrelation, tails and correlations are those of {real}
real healthy runs of ours, fitted and frozen before any threshold was tuned (`benchmarks/watch_noise.json`). Thresholds
were tuned on seeds 0 to 249; the healthy runs of this page are seeds {first} to {last}. The families marked *untuned*
were written, or first looked at, after that. What a simulation shows is bounded by what was put into it: real runs are
in [watch-real.md](watch-real.md).

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One simulated run as the monitor sees it. error: `since` less the onset, as a share of the run."""

    family: str
    label: str
    warned: bool
    rules: tuple[str, ...]
    early: bool
    error: float | None


def judge(make: Callable[[int], Simulated], seed: int) -> Judged:
    run = make(seed)
    said = examine(run.log)
    grave = [finding for finding in said.findings if finding.severity != "note"]
    steps = run.log.step
    onset = None if run.onset is None else int(steps[run.onset])
    in_time = [finding for finding in grave if onset is None or finding.alarm_step >= onset]
    error = None if onset is None or said.since is None else (said.since - onset) / int(steps[-1])
    return Judged(
        family=run.family,
        label=run.label,
        warned=bool(in_time),
        rules=tuple(dict.fromkeys(finding.rule for finding in grave)),
        early=len(in_time) < len(grave),
        error=error,
    )


def all_judged(make: Callable[[int], Simulated], seeds: Sequence[int], at_once: int) -> list[Judged]:
    if at_once == 1:
        return [judge(make, seed) for seed in seeds]
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(judge, make), seeds, chunksize=10))


def rate(hits: int, n: int) -> str:
    low, high = wilson(hits / n, n)
    return f"{hits} of {n} ({hits / n:.1%}; 95 %: {low:.1%} to {high:.1%})"


def page(healthy: list[Judged], gamed: list[Judged], first: int, families: Sequence[str]) -> str:
    text = INTRODUCTION.format(
        real=len(simulated_runs.watch_noise.frozen()["runs"]), first=first, last=first + len(healthy) - 1
    )
    false = [one for one in healthy if one.warned]
    text += f"## Healthy runs\n\nFalse alarms (a warning or an alarm, exit 1): {rate(len(false), len(healthy))}.\n\n"
    rows = []
    for family in (*HEALTHY, *HEALTHY_UNTUNED):
        own = [one for one in healthy if one.family == family]
        if own:
            name = f"{family} (untuned)" if family in HEALTHY_UNTUNED else family
            rows.append([name, str(len(own)), str(sum(one.warned for one in own))])
    text += table(["family", "runs", "false alarms"], rows) + "\n\n"
    by_rule = Counter(rule for one in false for rule in one.rules)
    text += "".join(f"- {one.label}: {', '.join(one.rules)}\n" for one in false)
    text += f"\nBy rule: {', '.join(f'{rule} {count}' for rule, count in by_rule.most_common()) or 'none'}.\n\n"
    found = [one for one in gamed if one.warned]
    errors = [abs(one.error) for one in found if one.error is not None]
    known = "rules were tuned on" if families == GAMED_TUNED else "no rule was tuned on"
    text += f"## Gamed runs, of families that {known}\n\nFound: {rate(len(found), len(gamed))}. "
    text += f"The onset is within 10 % of the run in {sum(e <= 0.1 for e in errors)} of {len(errors)}, "
    text += f"the median error {np.median(errors):.1%}. "
    text += f"{sum(one.early for one in gamed)} had a finding before the onset as well.\n\n"
    rows = []
    for family in families:
        own = [one for one in gamed if one.family == family]
        said = Counter(rule for one in own for rule in one.rules)
        common = ", ".join(f"{rule} {count}" for rule, count in said.most_common(3))
        rows.append([family, f"{sum(one.warned for one in own)} of {len(own)}", common])
    text += table(["what answers become", "found", "by"], rows) + "\n\n"
    return text + "".join(f"- missed: {one.label}\n" for one in gamed if not one.warned)


def main() -> int:
    parser = argparse.ArgumentParser(description="False alarms and detections on simulated runs.")
    parser.add_argument("--seed", type=int, default=FIRST, help="the first one")
    parser.add_argument("--healthy", type=int, default=HEALTHY_RUNS)
    parser.add_argument("--gamed", type=int, default=GAMED_RUNS)
    parser.add_argument("--tuned", action="store_true", help="gamed runs of the families that rules were tuned on")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    families = GAMED_TUNED if chosen.tuned else GAMED_UNTUNED
    seeds = range(chosen.seed, chosen.seed + max(chosen.healthy, chosen.gamed))
    healthy = all_judged(simulated_runs.healthy, seeds[: chosen.healthy], chosen.at_once)
    make = partial(simulated_runs.gamed, families=families)
    gamed = all_judged(make, seeds[: chosen.gamed], chosen.at_once)
    print(page(healthy, gamed, chosen.seed, families), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
