"""Rules that ask whether the KL of a log is one: measured at all, from the right reference, by sound samples."""

from dataclasses import dataclass

import numpy as np

from kleash.monitor import causal
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import View
from kleash.runlog.findings import Finding

_PER_TOKEN = "the KL of policy and reference per token, or lengths"


@dataclass(frozen=True, slots=True)
class Negative:
    """A mean KL below 0 for long: k1 may dip, but not stay (the samples are then not the policy's); k3 may never."""

    name: str = "negative kl"
    window: int = 20
    sure: float = 5.0
    never: float = -1e-4

    def scan(self, view: View) -> Scanned:
        if view.kl is None:
            return needs(self, _PER_TOKEN)
        x, tag = view.kl, view.log.kl.get("kl_ref")
        level = causal.mean(x, self.window)
        error = causal.spread(x, self.window) / np.sqrt(self.window)
        condition = (level < -self.sure * error) & (level < self.never) & (np.arange(view.rows) + 1 >= self.window)
        if tag is not None and tag.estimator in ("exact", "k2", "k3"):
            level = np.where(x < self.never, x, level)  # one row is enough
            condition |= x < self.never

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "the KL is negative",
                "what": f"the KL is {shown(level[row]):g} nats/token: it is no KL of this policy",
                "numbers": {"nats/token": shown(float(level[row]))},
                "sure": "sure",
                "do": [
                    "look for samples drawn at another temperature, top-k or top-p than the scored policy, padding "
                    "that counts, or an old policy's samples",
                ],
            }

        return findings(view, condition, hold=1, since=x, say=say)


@dataclass(frozen=True, slots=True)
class AtStart:
    """A KL above rounding before the first update: the reference is not the policy that the run began with."""

    name: str = "kl at the start"
    level: float = 0.01

    def scan(self, view: View) -> Scanned:
        if view.kl is None:
            return needs(self, _PER_TOKEN)
        if view.log.step[0] > 1 or view.log.smoothing > 1 or not np.isfinite(view.kl[0]):
            return needs(self, "the first step by itself")
        if abs(view.kl[0]) <= self.level:
            return []
        return [
            Finding(
                rule=self.name,
                severity="warning",
                headline="the KL does not begin at 0",
                what=f"at step {view.step(0)} the KL is {shown(float(view.kl[0])):g} nats/token already",
                alarm_step=view.step(0),
                since=view.step(0),
                sure="sure",
                numbers={"nats/token": shown(float(view.kl[0]))},
                do=[
                    "dropout on in one of the two, another dtype, an adapter left on or off, or another checkpoint as "
                    "the reference"
                ],
            )
        ]


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """No KL in the log: absent, a constant 0 where nothing is measured, or never a number."""

    name: str = "kl not measured"

    def scan(self, view: View) -> Scanned:
        if view.kl is not None or view.kl_sequence is not None:
            return []
        tag = view.log.kl.get("kl_ref")
        state = "absent" if tag is None else tag.state
        said = {
            "absent": "the log has no KL of policy and reference",
            "logged as 0": "the log's KL is 0 throughout, as this trainer writes it where it measures none",
            "NaN": "the log's KL is never a number",
            "measured": "the log's KL is never a number",
        }[state]
        return [
            Finding(
                rule=self.name,
                severity="note",
                headline="the KL is not measured",
                what=f"{said}: nothing here says how far the policy has moved",
                alarm_step=view.step(0),
                since=view.step(0),
                sure="sure",
                numbers={"state": state},
                do=["measure it on the checkpoints, or log it: a KL can be measured where none is charged"],
            )
        ]


@dataclass(frozen=True, slots=True)
class AtClamp:
    """A mean at the bound that the trainer cuts each token's KL to: what ran away is no longer pulled back."""

    name: str = "kl at its clamp"
    share: float = 0.3
    hold: int = 3

    def scan(self, view: View) -> Scanned:
        tag = view.log.kl.get("kl_ref")
        if view.kl is None or tag is None or tag.clamp is None:
            return needs(self, "a KL that the trainer clamps")
        kl, bound = view.kl, tag.clamp

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "the KL is at its clamp",
                "what": f"a mean of {shown(kl[row]):g} nats/token is near the "
                f"bound of {bound:g}, beyond which a token's KL has no gradient",
                "numbers": {"clamp": bound},
                "do": ["go back: the penalty has let go of the tokens that moved most"],
            }

        return findings(view, causal.mean(view.kl, 3) > self.share * bound, hold=self.hold, since=view.kl, say=say)
