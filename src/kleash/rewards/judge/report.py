"""What a judge's work came to: verdicts, failures by reason, position bias with its interval, cost."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kleash.rewards.judge.bias import Interval, agreement, position_bias
from kleash.rewards.judge.spec import JudgeSpec

if TYPE_CHECKING:
    from kleash.rewards.judge.judge import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Since the report before.

    questions: asked, of which `remembered` were answered from the cache; requests: sent, tries included; retries:
    requests beyond one for each question sent. failures: questions without a verdict, by reason. mass: mean probability
    on the verdicts, where it is known. bias, first: see `kleash.rewards.judge.bias`, and the share of verdicts for the
    first place that it comes to; consistent: share of pairs whose two orders name the same winner. ties: pairs that the
    judge calls equally good. cost: by the prices given.
    """

    questions: int
    remembered: int
    requests: int
    retries: int
    failures: dict[str, int]
    mass: float | None
    bias: Interval | None
    first: float | None
    consistent: Interval | None
    ties: int
    tokens_in: int
    tokens_out: int
    seconds: float
    cost: float | None

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For the terminal."""
        told = [f"{self.questions} questions, {self.remembered} of them remembered, {self.failed} without a verdict"]
        told += [f"  {count} × {reason}" for reason, count in sorted(self.failures.items())]
        if self.mass is not None:
            told.append(f"probability on the allowed verdicts: {self.mass:.3f} on average")
        if self.bias is not None:
            half = (self.bias.high - self.bias.low) / 2
            told.append(
                f"position bias {self.bias.value:+.1%} ± {half:.1%} (95 %, {self.bias.n} pairs): the first place wins "
                f"{self.first:.1%}"
            )
        if self.consistent is not None:
            c = self.consistent
            told.append(f"both orders name the same winner in {c.value:.1%} of the pairs ({c.low:.1%} to {c.high:.1%})")
        price = "" if self.cost is None else f", cost {self.cost:.4g}"
        told.append(
            f"{self.requests} requests ({self.retries} retries), {self.tokens_in} tokens in, {self.tokens_out} out, "
            f"{self.seconds:.1f} s{price}"
        )
        return told


def made(tally: "Tally", spec: JudgeSpec) -> Report:
    """The report of a tally."""
    bias = position_bias([o[0] for o in tally.orders], [o[1] for o in tally.orders], [o[2] for o in tally.orders])
    decided = [(a - 0.5) * (b - 0.5) > 0 for a, b, _ in tally.orders]
    cost = None
    if spec.price_in is not None and spec.price_out is not None:
        cost = (tally.tokens_in * spec.price_in + tally.tokens_out * spec.price_out) / 1e6
    return Report(
        questions=tally.questions,
        remembered=tally.remembered,
        requests=tally.requests,
        retries=tally.retries,
        failures=dict(tally.failures),
        mass=math.fsum(tally.masses) / len(tally.masses) if tally.masses else None,
        bias=bias,
        first=None if bias is None else (1 + bias.value) / 2,
        consistent=agreement(decided),
        ties=tally.ties,
        tokens_in=tally.tokens_in,
        tokens_out=tally.tokens_out,
        seconds=tally.seconds,
        cost=cost,
    )
