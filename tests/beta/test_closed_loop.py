"""The laws close the loop: they settle from far off, on a plain, a noisy and a late plant, and come back from spikes.

The plants and what "settled" means are in benchmarks/controllers.py; the steps stated here stand in docs/beta.md too.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.controllers import (
    BETA_STAR,
    LAWS,
    PLANTS,
    STARTS,
    TARGET,
    Run,
    band_of,
    closed_loop,
    settled_after,
    smooth,
    swing,
    tenfold,
)
from tests.tolerances import LOOP

from kleash.beta import PI, PPORule
from kleash.records import Reading, Target

#: Steps within which the law is in its band for good, from any of STARTS; None: it is not, and the docs say so.
SETTLES: dict[str, dict[str, int | None]] = {
    "PI": {"plain": 400, "20 % noise": 500, "±0.6 nats noise": 500, "dead time 5": 450},
    "PID": {"plain": 400, "20 % noise": 500, "±0.6 nats noise": 500, "dead time 5": 450},
    "Dual": {"plain": 650, "20 % noise": 700, "±0.6 nats noise": 800, "dead time 5": 700},
    "Ziegler, paper": {"plain": 500, "20 % noise": 600, "±0.6 nats noise": 550, "dead time 5": 2500},
    "Ziegler, code": {"plain": 1050, "20 % noise": 1050, "±0.6 nats noise": 1700, "dead time 5": 1050},
    "PPO ×2": {"plain": 250, "20 % noise": 250, "±0.6 nats noise": 250, "dead time 5": None},
}

#: Steps within which it is back after the true KL jumped tenfold.
RECOVERS: dict[str, dict[str, int | None]] = {
    "PI": {"plain": 175, "20 % noise": 250, "±0.6 nats noise": 250, "dead time 5": 200},
    "PID": {"plain": 175, "20 % noise": 250, "±0.6 nats noise": 250, "dead time 5": 200},
    "Dual": {"plain": 400, "20 % noise": 500, "±0.6 nats noise": 500, "dead time 5": 400},
    "Ziegler, paper": {"plain": 250, "20 % noise": 250, "±0.6 nats noise": 250, "dead time 5": 2250},
    "Ziegler, code": {"plain": 200, "20 % noise": 275, "±0.6 nats noise": 275, "dead time 5": 275},
    "PPO ×2": {"plain": 200, "20 % noise": 200, "±0.6 nats noise": 200, "dead time 5": None},
}

#: One seed of the noise in the fast tests; the bench's other seeds are slow ones.
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow))

#: Of the starts, the fast tests take the far ends; under noise only the one below.
EVERY_START = [start if start in (0.01, 100) else pytest.param(start, marks=pytest.mark.slow) for start in STARTS]
NOISY_START = [start if start == 0.01 else pytest.param(start, marks=pytest.mark.slow) for start in STARTS]

#: Steps a settled loop is watched for after it should be in its band.
WATCHED = 300
SPIKE_AT = 500

NOISY = [name for name, plant in PLANTS.items() if plant.relative_noise or plant.absolute_noise]
EXACT_PLANTS = [name for name in PLANTS if name not in NOISY]
#: In the wind-up from beta 0.2 the rule goes past beta_max's default, 100, which the paper does not have.
WIDE_PPO = PPORule(beta_min=1e-12, beta_max=1e12)
each_law = pytest.mark.parametrize("name", LAWS)


def run(name: str, on: str, start: float, steps: int, **options: Any) -> Run:
    return closed_loop(LAWS[name], PLANTS[on], beta=start * BETA_STAR, steps=steps, **options)


def stays(seen: Run, name: str, on: str, after: int) -> bool:
    low, high = band_of(LAWS[name])
    judged = smooth(seen.kl, PLANTS[on].window)[after:]
    return all(low <= kl / TARGET.value <= high for kl in judged)


def check_settles(name: str, on: str, start: float, seed: int) -> None:
    allowed = SETTLES[name][on]
    after = allowed or 2000
    seen = run(name, on, start, after + WATCHED, seed=seed)
    assert stays(seen, name, on, after) is (allowed is not None)


@each_law
@pytest.mark.parametrize("on", EXACT_PLANTS)
@pytest.mark.parametrize("start", EVERY_START)
def test_settles(name: str, on: str, start: float) -> None:
    check_settles(name, on, start, seed=0)


@each_law
@pytest.mark.parametrize("on", NOISY)
@pytest.mark.parametrize("start", NOISY_START)
@pytest.mark.parametrize("seed", SEEDS)
def test_settles_under_noise(name: str, on: str, start: float, seed: int) -> None:
    check_settles(name, on, start, seed)


def check_recovers(name: str, on: str, seed: int) -> None:
    allowed = RECOVERS[name][on]
    after = SPIKE_AT + (allowed or 1000)
    seen = run(name, on, 1.0, after + WATCHED, seed=seed, kick=tenfold(SPIKE_AT))
    assert seen.kl[SPIKE_AT] > 5 * TARGET.value
    assert stays(seen, name, on, after) is (allowed is not None)


@each_law
@pytest.mark.parametrize("on", EXACT_PLANTS)
def test_recovers_from_a_spike(name: str, on: str) -> None:
    check_recovers(name, on, seed=0)


@each_law
@pytest.mark.parametrize("on", NOISY)
@pytest.mark.parametrize("seed", SEEDS)
def test_recovers_from_a_spike_under_noise(name: str, on: str, seed: int) -> None:
    check_recovers(name, on, seed)


#: Readings that must not steer.
UNUSABLE: tuple[Callable[[Reading], Reading | None], ...] = (
    lambda seen: replace(seen, value=math.nan),
    lambda seen: replace(seen, value=math.inf),
    lambda seen: replace(seen, invalid="sampler mismatch"),
    lambda seen: replace(seen, value=-50.0, standard_error=0.1),
    lambda seen: None,
)
BLIND = 20


@each_law
def test_recovers_from_a_spike_it_could_not_see(name: str) -> None:
    """The KL jumps tenfold and 20 readings are unusable: beta stays, then the law recovers in its usual time."""

    def read(step: int, seen: Reading) -> Reading | None:
        return UNUSABLE[step % len(UNUSABLE)](seen) if SPIKE_AT <= step < SPIKE_AT + BLIND else seen

    allowed = RECOVERS[name]["plain"]
    assert allowed is not None
    after = SPIKE_AT + BLIND + allowed
    seen = run(name, "plain", 1.0, after + WATCHED, kick=tenfold(SPIKE_AT), read=read)
    assert len(set(seen.beta[SPIKE_AT : SPIKE_AT + BLIND + 1])) == 1
    assert all(state.held for state in seen.states[SPIKE_AT : SPIKE_AT + BLIND])
    assert seen.states[SPIKE_AT + BLIND].held is None
    assert stays(seen, name, "plain", after)


@pytest.mark.parametrize("name", ["PI", "PID", "Dual", "Ziegler, paper", "Ziegler, code"])
def test_follows_a_target_that_changes(name: str) -> None:
    """4 → 2 → 8 nats, each held to 10 % from the steps allowed after a spike on."""
    goals, stage = (4.0, 2.0, 8.0), 500
    allowed = RECOVERS[name]["plain"]
    seen = run(name, "plain", 1.0, stage * 3, target=lambda step: Target(goals[step // stage], "nats/sequence"))
    for index, goal in enumerate(goals):
        settled = settled_after(seen.kl[index * stage : (index + 1) * stage], goal)
        assert settled is not None and allowed is not None and settled <= allowed


@pytest.mark.slow
def test_ppo_rule_circles_where_no_rung_lies_in_its_band() -> None:
    """Its rungs are a factor 4 apart in KL, its band 2.25 wide; docs/beta.md gives these limits of it."""
    share, lowest, highest = swing(PLANTS["plain"], first_betas=20)
    assert share >= 1 - math.log(2.25) / math.log(4)
    assert 0.56 < lowest < 1 / 1.5 and 1.5 < highest < 1.77
    late, _, wildest = swing(PLANTS["dead time 5"], first_betas=4)
    assert late == 1 and wildest > 100


def test_pi_holds_its_target_without_bias_under_noise() -> None:
    """The mean true KL over 3,000 steps of 20 % noise is the target to 1 %: an error of KL itself, not of its log."""
    kl = closed_loop(PI(), PLANTS["20 % noise"], beta=BETA_STAR, steps=4000).kl[1000:]
    assert abs(math.fsum(kl) / len(kl) / TARGET.value - 1) < 0.01


def test_the_docs_promise_what_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "beta.md").read_text()
    for name in LAWS:
        cells = [SETTLES[name][on] for on in PLANTS] + [RECOVERS[name][on] for on in PLANTS]
        assert "| " + " | ".join([name, *("never" if cell is None else str(cell) for cell in cells)]) + " |" in page


# ── the published laws, on a plant written here again ────────────────────────────────────────────────────────────────


def published_plant(law: Callable[[float, float], float], steps: int = 1500) -> list[float]:
    """sigma 3, lag 30, target 6, beta 0.2 at first: the KL moves, is read, and the law answers."""
    beta, kl, seen = 0.2, 0.0, []
    for _ in range(steps):
        kl = kl + (9.0 / (2 * beta**2) - kl) / 30
        seen.append(kl)
        beta = law(beta, kl)
    return seen


def bounded(kl: float) -> float:
    return max(-0.2, min(0.2, kl / 6 - 1))


def ppo(beta: float, kl: float) -> float:
    if kl < 6 / 1.5:
        return beta / 2
    return beta * 2 if kl > 6 * 1.5 else beta


#: Highest KL, and the last step outside ±10 % (None: the ×2 rule is not judged by it).
PUBLISHED: dict[str, tuple[Callable[[float, float], float], float, int | None]] = {
    "Ziegler, code": (lambda beta, kl: beta * (1 + bounded(kl) * 256 / 10_000), 68.8, 374),
    "Ziegler, paper": (lambda beta, kl: beta * (1 + 0.1 * bounded(kl)), 42.1, 210),
    "PPO ×2": (ppo, 22.0, None),
    "Dual": (lambda beta, kl: beta * math.exp(0.02 * (kl - 6) / 6), 28.8, 255),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_our_laws_are_the_published_ones(name: str) -> None:
    """The same KL, step by step, as the formula typed from its paper, and the peaks computed independently before."""
    law, peak, last = PUBLISHED[name]
    theirs = published_plant(law)
    ours = closed_loop(WIDE_PPO if name == "PPO ×2" else LAWS[name], PLANTS["plain"], beta=0.2, steps=len(theirs)).kl
    assert round(max(ours), 1) == peak
    assert all(math.isclose(a, b, rel_tol=LOOP) for a, b in zip(ours, theirs, strict=True))
    if last is not None:
        assert max(step for step, kl in enumerate(ours) if abs(kl / 6 - 1) > 0.1) == last
