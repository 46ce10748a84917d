"""Rules that read the entropy: gone, scattered, or off its level just as the reward climbs."""

from dataclasses import dataclass

import numpy as np

from kleash.monitor import causal
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import WARM_UP, View


@dataclass(frozen=True, slots=True)
class EntropyCollapse:
    """Entropy nearly gone: every answer is certain, and nothing new is tried. Falling is usual, vanishing is not."""

    name: str = "entropy collapse"
    share: float = 0.1
    level: float = 0.1
    hold: int = 8

    def scan(self, view: View) -> Scanned:
        x = view.column("entropy")
        if x is None:
            return needs(self, "the entropy")
        low = causal.mean(x, 5)
        condition = (low < self.share * causal.baseline(x, WARM_UP)) & (low < self.level)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "entropy has collapsed",
                "what": f"the entropy is {shown(low[row]):g} nats, under {100 * self.share:g} % of where it began",
                "numbers": {"entropy": shown(float(low[row]))},
                "do": ["an entropy bonus, a tighter leash, or an earlier checkpoint: one answer is all that is left"],
            }

        return findings(view, condition, hold=self.hold, since=x, say=say, quote=True)


@dataclass(frozen=True, slots=True)
class EntropyExplosion:
    """Entropy far above where it began, or back there from far below: the policy scatters.

    A fall and a return by a quarter are usual (prompts change, a learning rate falls); a doubling is not.
    """

    name: str = "entropy explosion"
    times: float = 1.5
    more: float = 0.3
    returns: float = 2.0
    hold: int = 6

    def scan(self, view: View) -> Scanned:
        x = view.column("entropy")
        if x is None:
            return needs(self, "the entropy")
        high, base = causal.mean(x, 5), causal.baseline(x, WARM_UP)
        usual = causal.mean(x, 2 * WARM_UP)
        lowest = np.fmin(base, np.fmin.accumulate(np.where(np.isfinite(usual) & np.isfinite(base), usual, np.inf)))
        condition = (high > self.times * base) & (high > base + self.more)
        condition |= (high > self.returns * lowest) & (high > lowest + self.more) & (high > 0.8 * base)

        def say(row: int) -> dict[str, object]:
            low = shown(float(min(base[row], lowest[row])))
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "entropy explodes",
                "what": f"the entropy rose from {low:g} to {shown(high[row]):g} nats",
                "numbers": {"before": low, "now": shown(float(high[row]))},
                "do": ["a lower learning rate or entropy bonus; read the samples"],
            }

        return findings(view, condition, hold=self.hold, since=x, say=say, quote=True)


@dataclass(frozen=True, slots=True)
class EntropyBreaks:
    """Entropy had settled and leaves its level, up or down, while the reward climbs: the policy has found something.

    All that a run without a KL or samples may show of a hack; a skill found late may look the same. Against the level
    of a window before, in windows of several lengths; what went before must have been slower by `settled`, for entropy
    that falls all along is usual.
    """

    name: str = "entropy breaks away"
    change: float = 0.3
    settled: float = 3.0
    shortest: int = 20
    hold: int = 3

    def scan(self, view: View) -> Scanned:
        x, reward = view.column("entropy"), view.column("reward")
        if x is None or reward is None:
            return needs(self, "the entropy and the reward")
        if view.rows < 3 * self.shortest:
            return needs(self, f"at least {3 * self.shortest} rows")
        condition = np.zeros(view.rows, dtype=bool)
        moved = np.zeros(view.rows)
        noise = causal.noise(reward, 2 * self.shortest)
        window = self.shortest
        while 3 * window <= view.rows:
            levels = np.log(np.maximum(causal.mean(x, window // 2), 1e-6))
            now, earlier = levels - causal.before(levels, window), causal.before(levels, window)
            earlier = earlier - causal.before(earlier, window)
            line = causal.rise(reward, window)
            climbs = (line.t > 4) & (line.change > noise)
            found = (np.abs(now) > self.change) & (np.abs(now) > self.settled * np.abs(earlier)) & climbs
            found &= np.arange(view.rows) >= 3 * window - 1
            condition |= causal.held(found, self.hold)
            moved = np.where(found & (moved == 0), now, moved)
            window *= 3

        def say(row: int) -> dict[str, object]:
            share = shown(100 * abs(float(np.expm1(moved[row]))))
            way = "rose" if moved[row] > 0 else "fell"
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "entropy breaks away as the reward climbs",
                "what": f"the entropy had settled and {way} by {share:g} % while the reward climbed",
                "numbers": {"change of the entropy": shown(float(moved[row]))},
                "sure": "possible",
                "do": ["read the samples on both sides of it: a skill found late looks the same in these numbers"],
            }

        return findings(view, condition, hold=1, since=x, say=say, quote=True)
