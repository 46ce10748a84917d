"""Rules that read the KL of policy and reference."""

from dataclasses import dataclass

import numpy as np

from kleash.monitor import causal
from kleash.monitor.causal import Floats
from kleash.monitor.rule import Scanned, findings, last_of, needs, shown
from kleash.monitor.view import View

_NO_KL = "the KL of policy and reference"


@dataclass(frozen=True, slots=True)
class OverBudget:
    """KL over what it should be: the person's budget, else 2.5 times the run's target, else the default.

    The default warns only where no held-out score is logged, for a run that gains on prompts it is not trained on may
    go far. It needs both units where both are known: long answers carry many nats, short ones many a token. What ends
    in _alone is for logs without lengths. Published healthy runs have 0.02–0.15 nats/token and up to 40 nats/sequence.
    """

    name: str = "kl over budget"
    over_target: float = 2.5
    per_sequence: float = 10.0
    per_token: float = 0.15
    per_sequence_alone: float = 20.0
    per_token_alone: float = 0.3
    hold: int = 8
    far: float = 3.0
    hold_far: int = 2

    def scan(self, view: View) -> Scanned:
        if view.kl is None and view.kl_sequence is None:
            return needs(self, _NO_KL)
        found = self._ceiling(view)
        if found is None:
            asked = view.budget is not None or (view.column("target") is not None and view.log.target_unit is not None)
            lacking = "the KL in the unit of its ceiling (lengths)"
            return needs(self, lacking if asked else "a budget of yours, as a held-out score is logged")
        series, over, ceiling, unit, why = found

        def say(row: int) -> dict[str, object]:
            now, most = shown(last_of(series, row)), shown(float(ceiling[row]))
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": f"KL over {why}",
                "what": f"the KL is {now:g} {unit}, over {why} of {most:g}",
                "numbers": {unit: now, "ceiling": most},
                "sure": "sure",
                "do": ["tighten the leash (a higher beta, or a target), or set a budget that says how far is meant"],
            }

        far = causal.middle(series, 5) > self.far * ceiling
        condition = causal.held(over, self.hold) | causal.held(far, self.hold_far)
        return findings(view, condition, hold=1, since=series, say=say)

    def _ceiling(self, view: View) -> tuple[Floats, causal.Bools, Floats, str, str] | None:
        """KL, whether it is over, the ceiling by row, its unit, and whose it is."""
        token, sequence, target = view.kl, view.kl_sequence, view.column("target")
        if view.budget is not None:
            return _over(view.kl_in(view.budget.unit), view.budget.value, view.budget.unit, "your budget")
        if target is not None and view.log.target_unit is not None:
            unit = view.log.target_unit
            return _over(view.kl_in(unit), self.over_target * target, unit, f"{self.over_target:g} × the target")
        if view.held_out:
            return None
        if token is None:
            return _over(sequence, self.per_sequence_alone, "nats/sequence", "the default budget")
        if sequence is None:
            return _over(token, self.per_token_alone, "nats/token", "the default budget")
        found = _over(sequence, self.per_sequence, "nats/sequence", "the default budget")
        assert found is not None
        return found[0], found[1] & (causal.middle(token, 5) > self.per_token), *found[2:]


def _over(
    series: Floats | None, ceiling: Floats | float, unit: str, why: str
) -> tuple[Floats, causal.Bools, Floats, str, str] | None:
    if series is None:
        return None
    values = np.broadcast_to(ceiling, series.shape)
    return series, causal.middle(series, 5) > values, values, unit, why


@dataclass(frozen=True, slots=True)
class Runaway:
    """KL that multiplies, far from where a leash holds anything: grown so many times in a window, ever faster.

    From 0.5 nats/token on, half of all tokens could be told from the reference's; below it growth is the usual start.
    A KL that is on its way to a level multiplies too, at first, but slows down.
    """

    name: str = "kl runaway"
    times: float = 3.0
    window: int = 20
    faster: float = 1.3
    level: float = 0.5
    hold: int = 4

    def scan(self, view: View) -> Scanned:
        if view.kl is None:
            return needs(self, _NO_KL + " per token, or lengths")
        x = causal.middle(view.kl, 5)
        half = self.window // 2
        middle, start = causal.before(x, half), causal.before(x, self.window)
        condition = (x > self.level) & (x > self.times * start) & (x - middle > self.faster * (middle - start))

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "alarm",
                "headline": "KL IS RUNNING AWAY",
                "what": f"the KL grew {self.times:g} times in {self.window} rows, to {shown(x[row]):g} nats/token",
                "numbers": {"nats/token": shown(float(x[row]))},
                "sure": "sure",
                "do": ["go back to the last clean checkpoint: a policy this far is not brought back by beta"],
            }

        return findings(view, condition, hold=self.hold, since=view.kl, say=say)


@dataclass(frozen=True, slots=True)
class Spike:
    """One row far above its neighbours: an estimator's artefact where nothing else moved, real where something did.

    k3 of a single token can be any size (OpenRLHF#931: ratios of 5e8 in a run that was well).
    """

    name: str = "kl spike"
    times: float = 10.0
    deviations: float = 12.0
    window: int = 21
    moved: float = 6.0
    also: int = 2

    def scan(self, view: View) -> Scanned:
        if view.kl is None:
            return needs(self, _NO_KL + " per token, or lengths")
        x = view.kl
        usual = causal.before(causal.mean(x, self.window), 1)
        scale = causal.before(causal.noise(x, self.window), 1)
        spike = (x > self.times * np.abs(usual)) & (x > usual + self.deviations * scale) & (x > 0.01)
        back = ~(causal.before(x, 1) > self.times * np.abs(causal.before(usual, 1)))
        spike &= back & np.isfinite(scale) & (np.arange(view.rows) >= self.window)

        def say(row: int) -> dict[str, object]:
            also = self._also(view, row)
            real = len(also) >= self.also
            return {
                "rule": self.name,
                "severity": "warning" if real else "note",
                "headline": "KL spike" if real else "a KL spike of the estimator",
                "what": f"the KL jumped from {shown(usual[row]):g} to {shown(x[row]):g} nats/token; "
                + (f"{' and '.join(also)} jumped with it" if real else "nothing else moved: one token's estimate"),
                "numbers": {"before": shown(float(usual[row])), "spike": shown(float(x[row]))},
                "do": [] if real else ["nothing; an exact KL or a clamp with a counter would not show it"],
            }

        dated = np.minimum(x, 1e4)  # what is infinite is dated as a number, small enough that its square is exact
        return findings(view, spike, hold=1, since=dated, say=say)

    def _also(self, view: View, row: int) -> list[str]:
        """Which of reward, entropy and length left their usual range in the same row."""
        moved = []
        for name in ("reward", "entropy", "length"):
            x = view.column(name)
            if x is None or row < self.window:
                continue
            usual, scale = causal.mean(x[:row], self.window)[-1], causal.noise(x[:row], self.window)[-1]
            if np.isfinite(scale) and abs(x[row] - usual) > self.moved * max(scale, 1e-9 + 0.01 * abs(usual)):
                moved.append(name)
        return moved


@dataclass(frozen=True, slots=True)
class UpWhileFlat:
    """KL climbs and the reward does not: drift that buys nothing."""

    name: str = "kl up, reward flat"
    window: int = 40
    times: float = 2.0
    least: float = 0.05
    sure: float = 8.0
    beyond: float = 1.5
    hold: int = 10

    def scan(self, view: View) -> Scanned:
        reward = view.column("reward")
        if view.kl is None or reward is None:
            return needs(self, _NO_KL + " per token, and the reward")
        if view.rows < self.window:
            return needs(self, f"at least {self.window} rows")
        kl, gain = causal.rise(view.kl, self.window), causal.rise(reward, self.window)
        level = causal.mean(view.kl, 5)
        grown = (kl.change > self.least) & (kl.t > self.sure) & (level > self.times * (level - kl.change))
        # Flat: the line rises by less than the noise of one row, and is not sure to rise at all.
        flat = (gain.t < 2.0) & (gain.change < causal.noise(reward, self.window))
        held = view.held_out
        better = np.zeros(view.rows, dtype=bool)
        for x in held.values():
            better |= causal.rise(x, self.window).t > 2
        # Back to where it once was is a swing.
        highest = np.fmax.accumulate(np.where(np.isfinite(level), level, -np.inf))
        new = level > self.beyond * causal.before(highest, self.window)
        condition = grown & flat & new & ~better & ~_near_target(view)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "KL up, reward flat",
                "what": f"over {self.window} rows the KL rose by {shown(kl.change[row]):g} nats/token and the reward "
                "did not rise",
                "numbers": {
                    "KL rise, nats/token": shown(float(kl.change[row])),
                    "reward change": shown(float(gain.change[row])),
                },
                "do": ["lower the learning rate or tighten the leash: the drift earns nothing"],
            }

        return findings(view, condition, hold=self.hold, since=view.kl, say=say)


def _near_target(view: View) -> causal.Bools:
    """Rows at which the KL is below its target: a leash that lets it climb there is meant to."""
    target, series = view.column("target"), view.kl_of_target
    if target is None or series is None:
        return np.zeros(view.rows, dtype=bool)
    return causal.mean(series, 5) < 1.25 * target
