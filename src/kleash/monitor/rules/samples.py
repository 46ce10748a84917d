"""Rules that read what the policy writes. They work where no KL is logged, and find what no KL would."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kleash.monitor import causal
from kleash.monitor.causal import Bools, Floats
from kleash.monitor.rule import Scanned, findings, shown
from kleash.monitor.view import View
from kleash.runlog.findings import NotEvaluated, Severity

#: Sampled rows that a baseline of texts is taken from.
FIRST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule:
    """A measure of the samples that has moved away from where the run began.

    worse: "up" or "down". level: it is beyond this value; times: and beyond this many times its baseline; by: and this
    much beyond it. hold: sampled rows in a row. word: how a person calls the measure.
    """

    name: str
    measure: str
    worse: Literal["up", "down"]
    level: float
    times: float
    by: float
    hold: int
    severity: Severity
    headline: str
    word: str
    do: str

    def scan(self, view: View) -> Scanned:
        x = view.text(self.measure)
        if x is None:
            return NotEvaluated(rule=self.name, needs=f"samples, or {self.measure} in the log")
        rows = np.flatnonzero(np.isfinite(x))
        if len(rows) < FIRST + self.hold:
            return NotEvaluated(rule=self.name, needs=f"samples of at least {FIRST + self.hold} steps")
        now, base = causal.mean(x[rows], 3), causal.baseline(x[rows], FIRST)
        bad = np.zeros(view.rows, dtype=bool)
        bad[rows[causal.held(self._beyond(now, base), self.hold)]] = True

        def say(row: int) -> dict[str, object]:
            at = int(np.searchsorted(rows, row, side="right")) - 1
            before, after = shown(float(base[at])), shown(float(now[at]))
            return {
                "rule": self.name,
                "severity": self.severity,
                "headline": self.headline,
                "what": f"{self.word} went from {before:g} to {after:g}",
                "numbers": {"before": before, "now": after},
                "do": [self.do],
            }

        return findings(view, causal.between(bad, rows), hold=1, since=x, say=say, quote=True)

    def _beyond(self, now: Floats, base: Floats) -> Bools:
        if self.worse == "up":
            return (now > self.level) & (now > self.times * base) & (now > base + self.by)
        return (now < self.level) & (now < self.times * base) & (now < base - self.by)


_READ = "read the samples beside those of the start; go back to a checkpoint before it"

#: Thresholds with room above what healthy runs of our own reach. Where a task itself makes answers alike (a format, a
#: structure), variety falls in a healthy run too: it is a note, and no sign (`rules.SIGNS`).
TEXT_RULES = (
    TextRule(
        name="repetition", measure="seq_rep_4", worse="up", level=0.25, times=2.0, by=0.2, hold=2, severity="warning",
        headline="answers repeat themselves", word="the share of repeated 4-grams within an answer", do=_READ,
    ),
    TextRule(
        name="compressible", measure="compression_ratio", worse="up", level=3.0, times=1.8, by=1.0, hold=3,
        severity="note", headline="answers repeat each other", word="how well the answers compress", do=_READ,
    ),
    TextRule(
        name="variety", measure="distinct_2", worse="down", level=0.5, times=0.5, by=0.15, hold=3, severity="note",
        headline="variety is going", word="the share of distinct word pairs", do=_READ,
    ),
    TextRule(
        name="one opening", measure="opening", worse="up", level=0.6, times=2.0, by=0.3, hold=3, severity="warning",
        headline="every answer opens alike", word="the share of prompts answered with one opening phrase", do=_READ,
    ),
    TextRule(
        name="one answer", measure="alike", worse="up", level=0.5, times=2.0, by=0.3, hold=2, severity="alarm",
        headline="ONE ANSWER FOR EVERYTHING", word="the share of answers that other prompts get too", do=_READ,
    ),
    TextRule(
        name="markup", measure="markup", worse="up", level=0.1, times=3.0, by=0.08, hold=3, severity="note",
        headline="markup spreads", word="marks of markdown, HTML or LaTeX per word", do=_READ,
    ),
    TextRule(
        name="script", measure="foreign", worse="up", level=0.3, times=2.0, by=0.25, hold=2, severity="warning",
        headline="the script changes", word="the share of letters in another script than the prompts'", do=_READ,
    ),
    TextRule(
        name="degenerate", measure="degenerate", worse="up", level=0.3, times=2.0, by=0.25, hold=2, severity="alarm",
        headline="ANSWERS ARE NO TEXT", word="the share of answers that are empty, marks alone, or stuck", do=_READ,
    ),
    TextRule(
        name="copying", measure="copied", worse="up", level=0.4, times=2.0, by=0.3, hold=3, severity="warning",
        headline="answers copy the prompt", word="the share of 4-grams copied from the prompt", do=_READ,
    ),
)  # fmt: skip
