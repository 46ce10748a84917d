"""The published rates, held on a few runs (`python -m benchmarks.watch_rates` does them all), and in the code."""

import re
from pathlib import Path

from benchmarks import simulated_runs
from benchmarks.watch_rates import FIRST, judge

from kleash.monitor.record import RECORD


def test_healthy_runs_get_no_warning() -> None:
    """2 % of 500 are allowed; of 28, two families' worth, one."""
    seeds = range(FIRST, FIRST + 28)
    assert sum(judge(simulated_runs.healthy, seed).warned for seed in seeds) <= 1


def test_gamed_runs_of_families_no_rule_was_tuned_on_are_found() -> None:
    """90 % of 50 are wanted; of 20, two of each family, as many."""
    seeds = range(FIRST, FIRST + 20)
    assert sum(judge(simulated_runs.gamed, seed).warned for seed in seeds) >= 18


def test_the_record_is_what_the_pages_say() -> None:
    """`monitor.record` against the two pages that its benchmarks wrote."""
    pages = Path(__file__).parents[2] / "docs" / "runs"
    rates, real = (" ".join((pages / name).read_text().split()) for name in ("watch-rates.md", "watch-real.md"))
    one = r"(\d+) of (\d+)"
    alarms = re.search(rf"False alarms \(a warning or an alarm, exit 1\): {one} \(.*?95 %: .*? to ([\d.]+)%\)", rates)
    found = re.search(rf"## Gamed runs, of families that no rule was tuned on Found: {one}", rates)
    hacked = re.search(rf"{one} hacked runs found", real)
    warned = re.search(rf"{one} healthy runs got a warning", real)
    assert alarms and found and hacked and warned
    assert (RECORD.false_alarms, RECORD.found) == (whole(alarms), whole(found))
    assert (RECORD.real_found, RECORD.real_warned) == (whole(hacked), whole(warned))
    assert f"{100 * RECORD.most_false:.1f}" == alarms[3]


def whole(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])
