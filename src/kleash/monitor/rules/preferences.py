"""Rules for runs on preferences (DPO and its family)."""

from dataclasses import dataclass

from kleash.monitor import causal
from kleash.monitor.rule import Scanned, findings, needs, shown
from kleash.monitor.view import WARM_UP, View


@dataclass(frozen=True, slots=True)
class Displaced:
    """The margin grows while the chosen answers become unlikelier: likelihood goes to what neither side wrote.

    Some fall is usual (arXiv 2410.08847); by this share of the log-prob it began with it is told.
    """

    name: str = "likelihood displacement"
    share: float = 0.25
    hold: int = 5

    def scan(self, view: View) -> Scanned:
        margin, chosen = view.column("margin"), view.column("logp_chosen")
        if margin is None or chosen is None:
            return needs(self, "the margin and the log-prob of the chosen answers")
        base, now = causal.baseline(chosen, WARM_UP), causal.mean(chosen, 5)
        fallen = now < base - self.share * abs(base)
        grown = causal.mean(margin, 5) > causal.baseline(margin, WARM_UP)

        def say(row: int) -> dict[str, object]:
            return {
                "rule": self.name,
                "severity": "warning",
                "headline": "chosen answers become unlikely",
                "what": f"log π(chosen) fell from {shown(base[row]):g} to {shown(now[row]):g} nats while the margin "
                "grew",
                "numbers": {"before": shown(float(base[row])), "now": shown(float(now[row]))},
                "do": ["an SFT term on the chosen answers, a higher beta, or an earlier checkpoint"],
            }

        return findings(view, fallen & grown, hold=self.hold, since=chosen, say=say)
