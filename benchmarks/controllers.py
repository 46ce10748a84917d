"""Every law of beta in closed loop with simulated plants: the tables of docs/beta.md.

    python -m benchmarks.controllers        (two minutes; noisy rows are the slowest of ten seeds)

Plant: at a fixed beta the KL goes to sigma²/(2 beta²) (a Gaussian reward of deviation sigma tilted by 1/beta), with a
first-order lag of 30 steps: KL ← KL + (sigma²/(2 beta²) − KL)/30. Every run starts at the reference, KL = 0.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from kleash.beta import PI, PID, Dual, PPORule, Ziegler
from kleash.records import Controller, ControllerState, Reading, Target

SIGMA, LAG = 3.0, 30
TARGET = Target(6.0, "nats/sequence")
#: The beta at which the plant rests on the target.
BETA_STAR = SIGMA / math.sqrt(2 * TARGET.value)
#: First beta as a multiple of BETA_STAR.
STARTS = (0.01, 0.1, 1.0, 10.0, 100.0)
BAND = (0.9, 1.1)
STEPS = 3000


@dataclass(frozen=True, kw_only=True)
class Plant:
    """How the KL answers beta and how it is read; `window`: steps over which the true KL is averaged to judge it."""

    delay: int = 0  # steps from a change of beta to its first effect
    relative_noise: float = 0.0  # of the reading: lognormal, mean 1
    absolute_noise: float = 0.0  # of the reading: normal, nats; makes some readings negative
    window: int = 1


PLANTS = {
    "plain": Plant(),
    "20 % noise": Plant(relative_noise=0.2, window=100),
    "±0.6 nats noise": Plant(absolute_noise=0.6, window=100),
    "dead time 5": Plant(delay=5),
}

LAWS: dict[str, Controller] = {
    "PI": PI(),
    "PID": PID(),
    "Dual": Dual(),
    "Ziegler, paper": Ziegler(form="paper"),
    "Ziegler, code": Ziegler(form="code"),
    "PPO ×2": PPORule(),
}


def reading(value: float, standard_error: float | None = None) -> Reading:
    """kl_ref in nats per sequence, from 256 sequences."""
    return Reading(
        kind="kl_ref",
        value=value,
        unit="nats/sequence",
        estimator="exact",
        n_prompts=32,
        n_sequences=256,
        n_tokens=256 * 32,
        standard_error=standard_error,
    )


@dataclass(frozen=True)
class Run:
    """The true KL and the beta that made it, step by step, and the controller's last state."""

    kl: list[float] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    states: list[ControllerState] = field(default_factory=list)


def closed_loop(
    law: Controller,
    plant: Plant,
    *,
    beta: float,
    steps: int,
    seed: int = 0,
    kick: Callable[[int, float], float] = lambda step, kl: kl,
    read: Callable[[int, Reading], Reading | None] = lambda step, seen: seen,
    target: Callable[[int], Target] = lambda step: TARGET,
) -> Run:
    """Runs the loop. `kick` disturbs the true KL, `read` spoils its reading, `target` is the schedule, all by step."""
    noise = random.Random(seed)
    run, kl, state = Run(), 0.0, law.init(beta)
    acting = deque([beta] * plant.delay)
    for step in range(steps):
        acting.append(state.beta)
        kl += (SIGMA**2 / (2 * acting.popleft() ** 2) - kl) / LAG
        kl = kick(step, kl)
        run.kl.append(kl)
        run.beta.append(state.beta)
        tilt = plant.relative_noise
        seen = kl * math.exp(tilt * noise.gauss(0, 1) - tilt**2 / 2) + plant.absolute_noise * noise.gauss(0, 1)
        state = law.update(state, read(step, reading(seen, plant.absolute_noise)), target(step))
        run.states.append(state)
    return run


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean over the last `window` values at each step (fewer at the start)."""
    sums = [0.0, *accumulate(values)]
    return [(sums[end] - sums[max(0, end - window)]) / min(window, end) for end in range(1, len(sums))]


def settled_after(kl: Sequence[float], goal: float, band: tuple[float, float] = BAND) -> int | None:
    """Steps after which the KL stays within band·goal to the end; None: it ends outside or within its last eighth."""
    outside = [step for step, value in enumerate(kl) if not band[0] * goal <= value <= band[1] * goal]
    if not outside:
        return 0
    return outside[-1] + 1 if outside[-1] < len(kl) * 7 // 8 else None


def band_of(law: Controller) -> tuple[float, float]:
    return (1 / law.band, law.band) if isinstance(law, PPORule) else BAND


def seeds_of(plant: Plant) -> range:
    return range(10 if plant.relative_noise or plant.absolute_noise else 1)


def settling(law: Controller, plant: Plant, start: float, steps: int = STEPS) -> int | None:
    """Steps from KL = 0 until it stays in the band; the slowest seed; None if a seed never does."""
    found = []
    for seed in seeds_of(plant):
        run = closed_loop(law, plant, beta=start * BETA_STAR, steps=steps, seed=seed)
        found.append(settled_after(smooth(run.kl, plant.window), TARGET.value, band_of(law)))
    return slowest(found)


def recovery(law: Controller, plant: Plant, kick_at: int = 500, steps: int = STEPS) -> int | None:
    """Steps from a tenfold jump of the true KL until it stays in the band again; the slowest seed."""
    found = []
    for seed in seeds_of(plant):
        run = closed_loop(law, plant, beta=BETA_STAR, steps=steps, seed=seed, kick=tenfold(kick_at))
        found.append(settled_after(smooth(run.kl, plant.window)[kick_at:], TARGET.value, band_of(law)))
    return slowest(found)


def tenfold(at: int) -> Callable[[int, float], float]:
    return lambda step, kl: 10 * kl if step == at else kl


def slowest(found: Sequence[int | None]) -> int | None:
    return None if None in found else max(step for step in found if step is not None)


def outlier(law: Controller, at: int = 2000, steps: int = STEPS) -> float:
    """Largest excursion of the true KL, as a share of the target, after one reading ten times too high."""

    def spoil(step: int, seen: Reading) -> Reading:
        return replace(seen, value=10 * seen.value) if step == at else seen

    run = closed_loop(law, PLANTS["plain"], beta=BETA_STAR, steps=steps, read=spoil)
    return max(abs(kl / TARGET.value - 1) for kl in run.kl[at:])


def scheduled(law: Controller, stage: int = 1500) -> list[int | None]:
    """Steps to settle after each change of the target 4 → 2 → 8 nats."""
    goals = (4.0, 2.0, 8.0)
    run = closed_loop(
        law,
        PLANTS["plain"],
        beta=BETA_STAR,
        steps=stage * len(goals),
        target=lambda step: Target(goals[step // stage], TARGET.unit),
    )
    return [settled_after(run.kl[stage * i : stage * (i + 1)], goal, band_of(law)) for i, goal in enumerate(goals)]


def peak(law: Controller, beta: float) -> float:
    """Highest true KL on the way from this first beta, plain plant."""
    return max(closed_loop(law, PLANTS["plain"], beta=beta, steps=STEPS).kl)


def logarithmic(step: int, seen: Reading) -> Reading:
    """The reading whose relative error is ln(KL/target), so that PI steers by the logarithmic error instead."""
    error = math.log(seen.value / TARGET.value) if seen.value > 0 else -1.0
    return replace(seen, value=TARGET.value * max(0.0, 1 + error))


def held_level(law: Controller, read: Callable[[int, Reading], Reading], plant: Plant) -> float:
    """Mean true KL over the second half of a run, as a share of the target."""
    kl = closed_loop(law, plant, beta=BETA_STAR, steps=STEPS, read=read).kl[STEPS // 2 :]
    return math.fsum(kl) / len(kl) / TARGET.value


def errors_compared() -> list[tuple[str, list[object]]]:
    """PI by the relative and by the logarithmic error: settling and the level held under noise and dead time."""
    rows = []
    for name, read in (("relative", lambda step, seen: seen), ("logarithmic", logarithmic)):
        cells: list[object] = []
        for plant, start in (("plain", 0.01), ("plain", 100.0), ("dead time 5", 0.01), ("dead time 5", 100.0)):
            run = closed_loop(PI(), PLANTS[plant], beta=start * BETA_STAR, steps=STEPS, read=read)
            cells.append(settled_after(run.kl, TARGET.value))
        rows.append((name, [*cells, f"{held_level(PI(), read, Plant(relative_noise=0.4)):.3f}"]))
    return rows


def swing(plant: Plant, first_betas: int = 40) -> tuple[float, float, float]:
    """The ×2 rule after 500 steps: the share of first betas that leave its band, lowest and highest KL/target.

    The first betas span one rung, a factor two; the bounds are wide, for a bound would move the ladder.
    """
    law = PPORule(beta_min=1e-9, beta_max=1e9)
    ends = []
    for index in range(first_betas):
        kl = closed_loop(law, plant, beta=2 ** (index / first_betas) * BETA_STAR, steps=STEPS).kl[500:]
        ends.append((min(kl) / TARGET.value, max(kl) / TARGET.value))
    out = sum(low < 1 / law.band or high > law.band for low, high in ends)
    return out / first_betas, min(low for low, _ in ends), max(high for _, high in ends)


def under_dead_time() -> Iterator[tuple[str, list[object]]]:
    """What other gains do when the KL answers late."""
    laws: dict[str, Controller] = {"PI": PI(), "PID, kd 1": PID(), "PID, kd 4": PID(kd=4.0), "Dual": Dual()}
    for name, law in {**laws, "Dual, rate 0.1": Dual(rate=0.1)}.items():
        yield name, [settling(law, Plant(delay=delay), start) for delay in (5, 10) for start in (0.01, 100.0)]


def row(name: str, cells: Sequence[object]) -> str:
    return "| " + " | ".join([name, *("never" if cell is None else str(cell) for cell in cells)]) + " |"


def table(title: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[object]]]) -> None:
    print(f"\n{title}\n\n{row('', heads)}\n{'|---' * (len(heads) + 1)}|")
    for name, cells in rows:
        print(row(name, cells), flush=True)


def by_law(cells: Callable[[Controller], Sequence[object]]) -> Iterator[tuple[str, Sequence[object]]]:
    return ((name, cells(law)) for name, law in LAWS.items())


def main() -> None:
    for name, plant in PLANTS.items():
        table(
            f"Steps to settle, {name}, by first beta / beta*",
            [f"{start:g}×" for start in STARTS],
            by_law(lambda law, plant=plant: [settling(law, plant, start) for start in STARTS]),
        )
    table(
        "Steps to recover from a tenfold KL",
        list(PLANTS),
        by_law(lambda law: [recovery(law, plant) for plant in PLANTS.values()]),
    )
    table("Steps to settle after each change of the target", ["4", "→ 2", "→ 8"], by_law(scheduled))
    table(
        "On the way from beta 0.2, and after one reading ten times too high",
        ["highest KL", "excursion, share of target"],
        by_law(lambda law: [f"{peak(law, 0.2):.1f}", f"{outlier(law):.1%}"]),
    )
    table(
        "PI by the relative and the logarithmic error: steps to settle, and KL/target held under 40 % noise",
        ["plain 0.01×", "plain 100×", "dead time 0.01×", "dead time 100×", "level held"],
        errors_compared(),
    )
    table(
        "Other gains under dead time: steps to settle",
        ["5 steps, 0.01×", "5 steps, 100×", "10 steps, 0.01×", "10 steps, 100×"],
        under_dead_time(),
    )
    table(
        "The ×2 rule from first betas all over one rung",
        ["share that leaves the band", "lowest KL/target", "highest KL/target"],
        ((name, [f"{value:.2f}" for value in swing(PLANTS[name])]) for name in ("plain", "dead time 5")),
    )


if __name__ == "__main__":
    main()
