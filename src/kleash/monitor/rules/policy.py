"""Rules that read the policy and its updates: clipping, gradients, the sampler, lengths."""

from dataclasses import dataclass

import numpy as np

from kleash.monitor import causal
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import WARM_UP, View


@dataclass(frozen=True, slots=True)
class Clipped:
    """Much of every update is clipped: the step is too large for its clip."""

    name: str = "clip fraction"
    share: float = 0.3
    hold: int = 5

    def scan(self, view: View) -> Scanned:
        x = view.column("clip_fraction")
        if x is None:
            return needs(self, "the clip fraction")

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "updates are clipped",
                "what": f"{shown(100 * x[row]):g} % of the tokens are clipped",
                "do": ["a lower learning rate, or fewer epochs"],
            }

        return findings(view, causal.mean(x, 3) > self.share, hold=self.hold, since=x, say=say)


@dataclass(frozen=True, slots=True)
class SamplerMismatch:
    """Sampler and trainer disagree about the same tokens: ten times the 1e-3 nats of NeMo-RL's guide.

    Some trainers log no KL but the mean of |Δ log-prob|. A KL is about half the mean square of it, so that 0.01 nats
    are a mean of 0.11 (normal Δ): √(2 · 0.01) · √(2/π).
    """

    name: str = "sampler mismatch"
    level: float = 0.01
    difference: float = 0.1
    hold: int = 5

    def scan(self, view: View) -> Scanned:
        x = view.column("kl_sampler")
        if x is None:
            return needs(self, "the mismatch of sampler and trainer")

        tag = view.log.kl.get("kl_sampler")
        if tag is not None and tag.unit is None:
            return needs(self, "the mismatch of sampler and trainer in nats")
        is_kl = tag is None or tag.estimator is not None
        most = self.level if is_kl else self.difference

        def say(row: int) -> dict[str, object]:
            what = f"a KL of {shown(x[row]):g} nats/token" if is_kl else f"by {shown(x[row]):g} nats/token on average"
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "sampler and trainer disagree",
                "what": f"they {'have' if is_kl else 'differ in their log-probs'} {what}",
                "numbers": {"nats/token": shown(float(x[row])), "most": most},
                "do": [
                    "the same dtype, temperature and weights in both; truncated importance weights for what is left"
                ],
            }

        return findings(view, causal.mean(np.abs(x), 3) > most, hold=self.hold, since=x, say=say)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradient norms a hundred times the usual, more than once."""

    name: str = "gradient norm"
    times: float = 100.0
    hold: int = 2

    def scan(self, view: View) -> Scanned:
        x = view.column("grad_norm")
        if x is None:
            return needs(self, "the gradient norm")
        base = causal.baseline(x, WARM_UP)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "gradients explode",
                "what": f"the gradient norm is {shown(x[row]):g}, and was {shown(base[row]):g}",
                "do": ["a lower learning rate; look for single tokens with an extreme ratio"],
            }

        return findings(view, (x > self.times * base) & (base > 0), hold=self.hold, since=x, say=say)


@dataclass(frozen=True, slots=True)
class NotFinite:
    """A loss, gradient, reward or KL that was a number and is none any more, to the end of the log.

    A KL may also have ceased to be measured, while the run is well: it is a warning.
    """

    name: str = "not finite"
    hold: int = 3

    def scan(self, view: View) -> Scanned:
        columns = {n: view.log.columns[n] for n in ("loss", "grad_norm", "reward") if view.column(n) is not None}
        kl = next((n for n in ("kl_ref", "kl_ref_sequence") if view.column(n) is not None), None)
        if not columns and kl is None:
            return needs(self, "loss, gradient norm, reward or KL")
        others = np.zeros(view.rows, dtype=bool)
        for name, x in view.log.columns.items():
            if name not in (*columns, "kl_ref", "kl_ref_sequence") and not name.startswith("held_out/"):
                others |= np.isfinite(x)
        told = []
        for name, x in (columns if kl is None else columns | {kl: view.log.columns[kl]}).items():
            number = np.isfinite(x)
            # A row without it counts where the last ten rows before had it and the row itself holds other numbers.
            usual = causal.before(causal.mean(number.astype(float), 10), self.hold) > 0.9
            broken = np.isinf(x) | (~number & others)
            condition = causal.held(broken, self.hold) & usual

            def say(row: int, name: str = name) -> dict[str, object]:
                if name == kl:
                    return {
                        "rule": self.name,
                        "severity": "warning",
                        "headline": "the KL is no number any more",
                        "what": "the KL is NaN, infinite or no longer logged: from here on nothing says how far the "
                        "policy has moved",
                        "sure": "sure",
                        "do": [
                            "look at the samples for a token of probability 0, or measure the KL on the checkpoints"
                        ],
                    }
                return {
                    "rule": self.name,
                    "severity": "alarm",
                    "headline": f"{name.upper()} IS NO NUMBER",
                    "what": f"{name} is NaN or infinite",
                    "sure": "sure",
                    "do": ["resume from the last checkpoint before it with a lower learning rate"],
                }

            told += findings(view, condition, hold=1, since=number.astype(float), say=say)
        return told


@dataclass(frozen=True, slots=True)
class Dead:
    """The reward stands still to the last digit: nothing is learned, or nothing is scored."""

    name: str = "dead run"
    hold: int = 20

    def scan(self, view: View) -> Scanned:
        x = view.column("reward")
        if x is None:
            return needs(self, "the reward")
        rows = np.flatnonzero(np.isfinite(x))
        same = np.concatenate([[False], np.diff(x[rows]) == 0])
        condition = np.zeros(view.rows, dtype=bool)
        condition[rows[causal.held(same, self.hold)]] = True

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "the run is dead",
                "what": f"the reward has been {shown(x[row]):g} exactly for {self.hold} rows",
                "sure": "sure",
                "do": ["look at the samples and at the reward: every answer gets the same score"],
            }

        return findings(view, condition, hold=1, since=x, say=say, quote=True)


@dataclass(frozen=True, slots=True)
class Truncated:
    """Most answers are cut at the limit, and were not before: they no longer end."""

    name: str = "answers do not end"
    share: float = 0.6
    began: float = 0.3
    hold: int = 5

    def scan(self, view: View) -> Scanned:
        x = view.column("truncated")
        if x is None:
            return needs(self, "the share of answers cut at the limit")
        base = causal.baseline(x, WARM_UP)
        condition = (causal.mean(x, 3) > self.share) & (base < self.began)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "answers do not end",
                "what": f"{shown(100 * x[row]):g} % of the answers are cut at the limit, and "
                f"{shown(100 * base[row]):g} % were",
                "numbers": {"cut": shown(float(x[row])), "at first": shown(float(base[row]))},
                "do": ["a longer limit if they are sound; a length penalty if they ramble"],
            }

        return findings(view, condition, hold=self.hold, since=x, say=say, quote=True)
