"""Rules that set the reward beside what it should mean."""

from dataclasses import dataclass

import numpy as np

from kleash.monitor import causal
from kleash.monitor.causal import Bools, Floats
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import WARM_UP, View
from kleash.runlog.findings import Finding


def rising(view: View, window: int) -> Bools | None:
    """Rows at which the reward has surely risen over the window, by more than one row's noise."""
    reward = view.column("reward")
    if reward is None:
        return None
    line = causal.rise(reward, window)
    return (line.t > 5) & (line.change > causal.noise(reward, window))


def risen(view: View) -> Bools | None:
    """Rows at which the reward stands clearly above where the run began."""
    reward = view.column("reward")
    if reward is None:
        return None
    scale = causal.baseline(causal.noise(reward, 2 * WARM_UP), WARM_UP)
    return causal.mean(reward, 5) > causal.baseline(reward, WARM_UP) + 2 * scale


@dataclass(frozen=True, slots=True)
class Apart:
    """The reward rises while a score that it should stand for falls: held out, known to be true, or its own component.

    It must fall by a share of its own best and by several of its rows' deviations (a best of many is a lucky one),
    while the reward is at least what it was at that best: where both fall, prompts have become harder.
    """

    name: str = "reward up, quality down"
    share: float = 0.2
    deviations: float = 5.0
    hold: int = 3

    def scan(self, view: View) -> Scanned:
        up = risen(view)
        others = view.held_out | ({} if len(view.family("reward/")) < 2 else view.family("reward/"))
        if up is None or not others:
            return needs(self, "the reward, and a held-out score or two components")
        told: list[Finding] = []
        for name, x in others.items():
            told += self._one(view, name, x, up)[:1]
        return told

    def _one(self, view: View, name: str, x: Floats, up: Bools) -> list[Finding]:
        rows = np.flatnonzero(np.isfinite(x))
        if len(rows) < 4:
            return []
        y = x[rows]  # an evaluation every so many steps: its own rows count
        few = min(3, len(y))
        level = causal.mean(y, few)
        best, at = _best(level)
        wobble = causal.noise(y, 3 * WARM_UP)
        error = np.where(np.isfinite(wobble), wobble, np.inf) / np.sqrt(few)
        fallen = (level < best - self.share * np.abs(best)) & (level < best - self.deviations * error)
        reward = causal.mean(view.log.columns["reward"], 5)[rows]
        fallen &= reward >= reward[at]
        condition = np.zeros(view.rows, dtype=bool)
        hold = min(self.hold, 2) if len(y) < 20 else self.hold
        condition[rows[causal.held(fallen, hold)]] = True
        # Between evaluations it stays as it was.
        condition = causal.between(condition, rows) & up
        known = name in view.held_out

        def say(row: int) -> dict[str, object]:
            last = int(np.searchsorted(rows, row, side="right")) - 1
            return {
                "rule": self.name,
                "severity": "alarm" if known else "warning",
                "headline": f"REWARD UP, {name} DOWN" if known else f"reward up, {name} down",
                "what": f"the reward rose while {name} fell from {shown(best[last]):g} to {shown(y[last]):g}",
                "numbers": {"best": shown(float(best[last])), "now": shown(float(y[last]))},
                "sure": "sure" if known else "likely",
                "do": [f"the reward no longer stands for {name}: go back to before it fell, and change the reward"],
            }

        return findings(view, condition, hold=1, since=x, say=say)


def _best(level: Floats) -> tuple[Floats, np.ndarray]:
    """The highest so far, and its row."""
    best = np.maximum.accumulate(np.where(np.isfinite(level), level, -np.inf))
    at = np.maximum.accumulate(np.where(level == best, np.arange(len(level)), 0))
    return best, at


@dataclass(frozen=True, slots=True)
class FewRows:
    """Three to seven rows in which one component rises steadily, another falls by half, and answers change length.

    Too few to be sure of anything, and just what the first minutes of a format hack look like (open-r1#255).
    """

    name: str = "components part, few rows"
    falls: float = 0.5
    rises: float = 0.3

    def scan(self, view: View) -> Scanned:
        parts = view.family("reward/")
        if len(parts) < 2:
            return needs(self, "two components of the reward")
        told: list[Finding] = []
        for row in range(2, min(view.rows, WARM_UP - 1)):
            ends = {name: (x[0], x[row]) for name, x in parts.items() if np.isfinite(x[: row + 1]).all()}
            steady = {
                name
                for name, x in parts.items()
                if name in ends and (np.diff(x[: row + 1]) > 0).all() and ends[name][1] - ends[name][0] > self.rises
            }
            fallen = {
                name
                for name, x in parts.items()
                if name in ends and (np.diff(x[: row + 1]) < 0).all() and ends[name][1] < self.falls * ends[name][0]
            }
            if steady and fallen:
                up, down = sorted(steady)[0], sorted(fallen)[0]
                told.append(
                    Finding(
                        rule=self.name,
                        severity="warning",
                        headline=f"suspect, too few steps: {up} up, {down} down",
                        what=f"{up} rose from {shown(ends[up][0]):g} to {shown(ends[up][1]):g} while {down} fell from "
                        f"{shown(ends[down][0]):g} to {shown(ends[down][1]):g}, in {row + 1} rows",
                        alarm_step=view.step(row),
                        since=view.step(0),
                        sure="possible",
                        do=["watch on: if it goes on so, the run is gaming its format reward"],
                    )
                )
                break
        return told


@dataclass(frozen=True, slots=True)
class Hacking:
    """The signature: the reward rises, the KL rises ever faster, and it is far already.

    far: nats per token, from where on a run without a target is asked; with a target, times it. Not where a held-out
    score rises too: then what is learned carries over.
    """

    name: str = "reward up, kl accelerating"
    window: int = 20
    far: float = 0.3
    times: float = 3.0
    hold: int = 3

    def scan(self, view: View) -> Scanned:
        up = rising(view, 2 * self.window)
        if up is None or view.kl is None:
            return needs(self, "the reward and the KL per token")
        if view.rows < 2 * self.window:
            return needs(self, f"at least {2 * self.window} rows")
        recent = causal.rise(view.kl, self.window)
        earlier = causal.before(recent.change, self.window)
        level = causal.mean(view.kl, 3)
        far = level > self.far
        target, series = view.column("target"), view.kl_of_target
        if target is not None and series is not None:
            far = causal.mean(series, 3) > self.times * target
        better = np.zeros(view.rows, dtype=bool)
        for x in view.held_out.values():
            better |= causal.rise(x, 4 * self.window).t > 2
        condition = up & (recent.t > 5) & (recent.change > 1.5 * np.maximum(earlier, 0.0)) & far & ~better

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "alarm",
                "headline": "REWARD UP, KL ACCELERATING",
                "what": f"the reward rises while the KL, at {shown(level[row]):g} nats/token, rises ever faster",
                "numbers": {
                    "nats/token": shown(float(level[row])),
                    "rise in the window, nats/token": shown(float(recent.change[row])),
                },
                "do": ["go back to the last clean checkpoint and tighten the leash before it goes on"],
            }

        return findings(view, condition, hold=self.hold, since=view.kl, say=say, quote=True)


@dataclass(frozen=True, slots=True)
class SpreadGone:
    """Groups whose scores are all equal give no gradient: nearly all of them, for long."""

    name: str = "reward spread gone"
    share: float = 0.9
    hold: int = 10

    def scan(self, view: View) -> Scanned:
        same = view.column("groups_without_spread")
        if same is None:
            return needs(self, "the share of groups without spread")

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "note",
                "headline": "no spread in the reward",
                "what": f"{shown(100 * same[row]):g} % of the groups have equal scores: they teach nothing",
                "do": ["harder or easier prompts, larger groups, a finer reward, or dynamic sampling"],
            }

        return findings(view, causal.mean(same, 5) > self.share, hold=self.hold, since=same, say=say)


@dataclass(frozen=True, slots=True)
class LengthCoupled:
    """The reward pays for length: score and length go together within a step, and answers have grown much longer."""

    name: str = "reward follows length"
    correlation: float = 0.5
    grown: float = 2.0
    hold: int = 8

    def scan(self, view: View) -> Scanned:
        length, coupled = view.column("length"), view.column("reward_length_correlation")
        if length is None or coupled is None:
            return needs(self, "length, and the correlation of score and length")
        long = causal.mean(length, 5) > self.grown * causal.baseline(length, WARM_UP)
        condition = long & (causal.mean(coupled, 10) > self.correlation)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "the reward pays for length",
                "what": f"answers have {shown(length[row]):g} tokens, and longer ones score higher (correlation "
                f"{shown(coupled[row]):g})",
                "numbers": {"length": shown(float(length[row])), "correlation": shown(float(coupled[row]))},
                "do": ["a length penalty, or a reward that does not grow with length"],
            }

        return findings(view, condition, hold=self.hold, since=length, say=say)
