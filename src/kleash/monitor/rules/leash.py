"""Rules that read the leash itself: beta, its target, and what a nat earns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kleash.monitor import causal
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import WARM_UP, View


@dataclass(frozen=True, slots=True)
class TooTight:
    """KL at the noise floor and a flat reward: the leash, or the learning rate, lets nothing happen."""

    name: str = "leash too tight"
    floor: float = 1e-4
    window: int = 40
    hold: int = 30

    def scan(self, view: View) -> Scanned:
        reward = view.column("reward")
        if view.kl is None or reward is None:
            return needs(self, "the KL of policy and reference per token, and the reward")
        if view.rows < self.window + self.hold:
            return needs(self, f"at least {self.window + self.hold} rows")
        still = causal.mean(np.abs(view.kl), 5) < self.floor
        flat = np.abs(causal.rise(reward, self.window).t) < 3

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "note",
                "headline": "the policy does not move",
                "what": f"the KL stays below {self.floor:g} nats/token and the reward is flat",
                "do": ["loosen the leash or raise the learning rate, if the reward has any spread"],
            }

        return findings(view, still & flat, hold=self.hold, since=view.kl, say=say)


@dataclass(frozen=True, slots=True)
class Price:
    """What a nat earns, fallen under what it costs: at a fixed beta, drift goes on although it no longer pays."""

    name: str = "price of a nat"
    window: int = 40
    share: float = 0.5
    least: float = 2.0
    hold: int = 10

    def scan(self, view: View) -> Scanned:
        reward, beta, kl = view.column("reward"), view.column("beta"), view.kl_sequence
        if reward is None or beta is None or kl is None:
            return needs(self, "reward, beta and the KL per sequence")
        if _in_deviations(view.log.config):
            return needs(self, "a beta in units of the reward, which is not divided by its groups' spread")
        if view.rows < self.window:
            return needs(self, f"at least {self.window} rows")
        gain, cost = causal.rise(reward, self.window), causal.rise(kl, self.window)
        with np.errstate(invalid="ignore", divide="ignore"):
            price = gain.change / cost.change
        condition = (cost.change > self.least) & (cost.t > 8) & (price < self.share * beta)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "note",
                "headline": "a nat no longer pays its toll",
                "what": f"over {self.window} rows a nat earned {shown(price[row]):g} of reward, and costs "
                f"{shown(beta[row]):g}",
                "numbers": {"reward per nat": shown(float(price[row])), "beta": shown(float(beta[row]))},
                "do": ["stop here, or tighten: further drift buys less than it is charged"],
            }

        return findings(view, condition, hold=self.hold, since=kl, say=say)


def _in_deviations(config: Mapping[str, Any]) -> bool:
    """Whether beta is counted in standard deviations of the reward: kleash's `std`, TRL's `scale_rewards`."""
    algorithm = config.get("algorithm")
    own = algorithm.get("std") if isinstance(algorithm, Mapping) else None
    return own not in (None, "none") or config.get("scale_rewards", False) not in (False, None, "none")


@dataclass(frozen=True, slots=True)
class ShorterUnderCharge:
    """Answers shrink while beta rises: a charge per sequence is escaped by saying less."""

    name: str = "shorter under the charge"
    length: float = 0.6
    beta: float = 1.5
    hold: int = 8

    def scan(self, view: View) -> Scanned:
        length, beta = view.column("length"), view.column("beta")
        if length is None or beta is None:
            return needs(self, "length and beta")
        short = causal.mean(length, 5) < self.length * causal.baseline(length, WARM_UP)
        risen = causal.mean(beta, 5) > self.beta * causal.baseline(beta, WARM_UP)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "answers shrink as beta rises",
                "what": f"length fell to {shown(length[row]):g} tokens while beta rose to {shown(beta[row]):g}",
                "numbers": {"length": shown(float(length[row])), "beta": shown(float(beta[row]))},
                "do": ["set the target per token, or add a reward that long answers can earn"],
            }

        return findings(view, short & risen, hold=self.hold, since=length, say=say)


@dataclass(frozen=True, slots=True)
class Pinned:
    """An adapted beta that stands still while its KL is off its target: it has met a bound."""

    name: str = "beta pinned"
    off: float = 1.5
    hold: int = 20

    def scan(self, view: View) -> Scanned:
        beta, target, series = view.column("beta"), view.column("target"), view.kl_of_target
        if beta is None or target is None or series is None:
            return needs(self, "beta, and the KL in the unit of its target")
        still = np.concatenate([[False], np.abs(np.diff(beta)) <= 1e-12 * np.abs(beta[1:])])
        with np.errstate(invalid="ignore", divide="ignore"):
            away = causal.mean(series, 5) / target
        condition = still & ((away > self.off) | (away < 1 / (4 * self.off)))

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning" if away[row] > self.off else "note",
                "headline": "beta is pinned",
                "what": f"beta stands at {shown(beta[row]):g} while the KL is {shown(away[row]):g} times its target",
                "numbers": {"beta": shown(float(beta[row])), "KL / target": shown(float(away[row]))},
                "do": ["widen the controller's bounds, or look why it holds (controller_held)"],
            }

        return findings(view, condition, hold=self.hold, since=series, say=say)


@dataclass(frozen=True, slots=True)
class Oscillating:
    """Beta swings: its direction turns again and again, each swing a multiple of beta."""

    name: str = "beta oscillating"
    swing: float = 3.0
    window: int = 40
    turns: int = 4

    def scan(self, view: View) -> Scanned:
        beta = view.column("beta")
        if beta is None or not (beta[np.isfinite(beta)] > 0).any():
            return needs(self, "a beta above 0")
        if view.rows < self.window:
            return needs(self, f"at least {self.window} rows")
        with np.errstate(invalid="ignore", divide="ignore"):
            log = np.log(np.where(beta > 0, beta, np.nan))
        smooth = causal.mean(log, 3)
        # Half a swing above or below the window's middle, alternately.
        side = np.sign(smooth - causal.mean(log, self.window)) * (
            np.abs(smooth - causal.mean(log, self.window)) > np.log(self.swing) / 2
        )
        seen = np.where(side == 0, np.nan, side)
        filled = causal.carried(seen)
        turned = np.concatenate([[0.0], (np.diff(filled) != 0) & np.isfinite(np.diff(filled))]).astype(float)
        number = causal.mean(turned, self.window) * np.minimum(np.arange(view.rows) + 1, self.window)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "note",
                "headline": "beta swings",
                "what": f"beta turned {number[row]:.0f} times in {self.window} rows, each time by a factor of "
                f"{self.swing:g} or more",
                "do": ["a smaller gain of the controller, or more samples a step"],
            }

        return findings(view, number >= self.turns, hold=1, since=log, say=say)


@dataclass(frozen=True, slots=True)
class ReferenceMoved:
    """The KL falls to almost nothing from one row to the next: the reference was set to the policy."""

    name: str = "reference moved"
    from_level: float = 0.02
    to_share: float = 0.1

    def scan(self, view: View) -> Scanned:
        if view.kl is None:
            return needs(self, "the KL of policy and reference per token, or lengths")
        kl = view.kl
        level = causal.before(causal.mean(kl, 5), 1)
        condition = (level > self.from_level) & (np.abs(kl) < self.to_share * level)
        quiet = causal.before(causal.noise(kl, 20), 1) < level / 4

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "note",
                "headline": "the reference moved",
                "what": f"the KL fell from {shown(level[row]):g} to {shown(kl[row]):g} nats/token at once: from here "
                "on it is measured from another model",
                "do": ["read the KL to the first reference (kl_origin), if it is logged"],
            }

        return findings(view, condition & quiet, hold=1, since=view.kl, say=say)
