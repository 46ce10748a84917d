"""The published rates, held on a few runs (`python -m benchmarks.watch_rates` does them all)."""

from benchmarks import simulated_runs
from benchmarks.watch_rates import FIRST, judge, wilson


def test_healthy_runs_get_no_warning() -> None:
    """2 % of 500 are allowed; of 28, two families' worth, one."""
    seeds = range(FIRST, FIRST + 28)
    assert sum(judge(simulated_runs.healthy, seed).warned for seed in seeds) <= 1


def test_gamed_runs_of_families_no_rule_was_tuned_on_are_found() -> None:
    """90 % of 50 are wanted; of 20, two of each family, as many."""
    seeds = range(FIRST, FIRST + 20)
    assert sum(judge(simulated_runs.gamed, seed).warned for seed in seeds) >= 18


def test_a_wilson_interval() -> None:
    """16 of 500: 1.98 % to 5.13 % (dedrift publishes the upper one as 5.1 %)."""
    low, high = wilson(16, 500)
    assert (round(100 * low, 2), round(100 * high, 1)) == (1.98, 5.1)
    assert wilson(0, 500)[0] == 0.0
