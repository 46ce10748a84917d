"""Which charts tell the story of a run, from its step records."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kleash.records import Step, Target
from kleash.report import trust
from kleash.report.charts import Chart, Series, measured
from kleash.report.log import Extract, Log, mean
from kleash.report.words import HELD

#: A longer run is drawn as the means of equal stretches of steps; more points would not be seen.
MOST_POINTS = 400

Group = tuple[str, str, list[Chart]]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps in stretches of `width`, each drawn as one point."""

    stretches: Sequence[Sequence[Step]]

    @classmethod
    def of(cls, steps: Sequence[Step], longest: int = 0) -> "Steps":
        """Stretches short enough for `longest` steps, where this run is drawn beside longer ones."""
        width = math.ceil(max(len(steps), longest) / MOST_POINTS)
        return cls([steps[i : i + width] for i in range(0, len(steps), width)])

    @property
    def x(self) -> list[float]:
        return [float(stretch[0].step) for stretch in self.stretches]

    @property
    def note(self) -> str:
        width = len(self.stretches[0])
        return f" Each point is the mean of {width} steps." if width > 1 else ""

    def column(self, extract: Extract) -> list[float | None]:
        return [mean(extract(step) for step in stretch) for stretch in self.stretches]


def groups(log: Log) -> list[Group]:
    """(heading, introduction, charts) in reading order; a chart of which nothing was measured is left out."""
    steps = Steps.of(log.steps)
    found: list[Group] = [
        (
            "The leash",
            "How far the policy went from its reference, and what held it.",
            [kl(log, steps), beta(steps), *classes(steps)],
        ),
        (
            "What it bought",
            "The score, and the score against the distance it cost.",
            [*reward(steps), *held_out(log), portrait(steps)],
        ),
        (
            "How far the reward can be trusted",
            "A learned reward is accurate mainly near the reference’s text. Over each sample’s own KL.",
            trust.charts(log),
        ),
        ("The text", "Collapse shows here first: in variety, repetition, length and entropy.", text(steps)),
        ("The updates", "How each step moved the policy, and at what cost in time.", updates(steps)),
    ]
    drawn = [(heading, intro, [chart for chart in charts if chart.drawn()]) for heading, intro, charts in found]
    return [group for group in drawn if group[2] or group[2] is drawn[0][2]]


def kl(log: Log, steps: Steps) -> Chart:
    """kl_ref with a 95 % band, its 95 % quantile over sequences (or tokens), the target, the budget, and kl_origin."""

    def bound(sign: int) -> Extract:
        def at(step: Step) -> float | None:
            reading = log.kl(step)
            if reading is None or reading.standard_error is None:
                return None
            return reading.value + sign * 1.96 * reading.standard_error

        return at

    def q95(step: Step) -> float | None:
        reading = log.kl(step)
        return reading.q95 if reading else None

    unit = "nats/token" if log.per_token else "nats/sequence"
    what = "tokens" if log.per_token else "sequences"
    reading = next((log.kl(step) for step in log.steps if log.kl(step)), None)
    how = f"Estimator: {reading.estimator}. " if reading else ""
    mean_line = Series(
        name="mean", y=steps.column(log.kl_value), low=steps.column(bound(-1)), high=steps.column(bound(+1))
    )
    tail = Series(name=f"95 % of {what} are below", y=steps.column(q95), faint=True)
    whole = Series(name="from the first reference", y=steps.column(log.kl_origin_value))
    targets = steps.column(lambda step: Target.parse(step.target).value if step.target else None)
    budgets = steps.column(lambda step: _in_unit(step.budget, unit))
    around = f" Round the target: ± {100 * HELD:.0f} %." if measured(targets) else ""
    return Chart(
        title="KL to the reference",
        unit=unit,
        x=steps.x,
        series=[mean_line, tail, whole],
        target=targets if measured(targets) else None,
        held=HELD,
        limit=budgets if measured(budgets) else None,
        zero=True,
        note=f"{how}Band: 95 % interval of the mean, clustered by prompt.{around}{steps.note}",
    )


def _in_unit(level: str | None, unit: str) -> float | None:
    read = Target.parse(level) if level else None
    return read.value if read and read.unit == unit else None


def beta(steps: Steps) -> Chart:
    """beta and the price it should equal at the optimum; on a log axis where beta is positive throughout."""
    betas = steps.column(lambda step: step.beta)
    prices = steps.column(lambda step: step.price)
    log = bool(measured(betas)) and min(measured(betas)) > 0
    dropped = log and any(price <= 0 for price in measured(prices))
    if dropped:
        prices = [price if price is not None and price > 0 else None for price in prices]
    return Chart(
        title="Beta and price",
        unit="score per nat",
        x=steps.x,
        series=[Series(name="beta", y=betas), Series(name="price", y=prices, faint=True)],
        log=log,
        zero=not log,
        note="Price: score gained per nat of KL over the last 20 steps."
        + (" Stretches where it is not positive have no place on this axis." if dropped else "")
        + steps.note,
    )


def classes(steps: Steps) -> list[Chart]:
    """kl_ref by the class of the sampled token."""

    def chart(title: str, unit: str, name: str) -> Chart:
        def of(kind: str) -> Extract:
            return lambda step: getattr(step, name).get(kind)

        series = [Series(name=kind, y=steps.column(of(kind))) for kind in ("content", "format", "eos")]
        return Chart(title=title, unit=unit, x=steps.x, series=series, zero=True)

    return [
        chart("KL by class of token", "nats/token of the class", "kl_class"),
        chart("Share of the KL", "share", "kl_share"),
    ]


def reward(steps: Steps) -> list[Chart]:
    """The total score, and beside it each reward by name where there are several."""
    names = list(dict.fromkeys(name for stretch in steps.stretches for step in stretch for name in step.scores))
    series = [Series(name="total", y=steps.column(lambda step: step.score))]
    if len(names) > 1:
        series += [Series(name=name, y=steps.column(lambda s, n=name: s.scores.get(n)), faint=True) for name in names]
    score = Chart(title="Score", unit="mean over samples", x=steps.x, series=series, note=steps.note.strip())
    shaped = [Series(name="shaped", y=steps.column(lambda step: step.score_shaped))]
    if all(value is None for value in shaped[0].y):
        return [score]
    note = "The total after the rewards' shapes: what the policy is trained on." + steps.note
    return [score, Chart(title="Shaped score", unit="mean over samples", x=steps.x, series=shaped, note=note)]


def held_out(log: Log) -> list[Chart]:
    """Score and KL on the held-out prompts, each with a 95 % band; nothing where none were held out."""
    done = log.evaluations
    if not done:
        return []
    x = [float(evaluation.step) for evaluation in done]
    note = f"{done[-1].n_prompts} prompts, {done[-1].how}; the same noise each time. Band: 95 %, clustered by prompt."

    def chart(title: str, unit: str, points: Sequence[tuple[float | None, float | None]], zero: bool) -> Chart:
        def bound(sign: int) -> list[float | None]:
            return [None if y is None or error is None else y + sign * 1.96 * error for y, error in points]

        series = Series(name="held out", y=[y for y, _ in points], low=bound(-1), high=bound(+1))
        return Chart(title=title, unit=unit, x=x, series=[series], zero=zero, note=note)

    readings = [log.kl(evaluation) for evaluation in done]
    kls = [(None, None) if reading is None else (reading.value, reading.standard_error) for reading in readings]
    return [
        chart("Held-out score", "mean over samples", [(e.score, e.score_error) for e in done], False),
        chart("Held-out KL to the reference", "nats/token" if log.per_token else "nats/sequence", kls, True),
    ]


def portrait(steps: Steps) -> Chart:
    """Score against √KL: a straight line is a good bargain, a bend to the right is over-optimisation."""
    values = steps.column(lambda step: step.kl_ref.value if step.kl_ref else None)
    roots = [math.sqrt(value) if value is not None and value >= 0 else None for value in values]
    scores = steps.column(lambda step: step.score)
    y = [score if root is not None else None for score, root in zip(scores, roots, strict=True)]
    return Chart(
        title="Score against √KL",
        unit="√ nats/sequence",
        x=steps.x,
        series=[Series(name="score", y=y, x=roots)],
        path=True,
        x_label="√KL",
        note="One dot a step, joined in order. Moving right without rising is distance that buys nothing.",
    )


def text(steps: Steps) -> list[Chart]:
    def column(name: str) -> list[float | None]:
        return steps.column(lambda step: getattr(step, name))

    def chart(title: str, unit: str, *lines: tuple[str, str], note: str = "") -> Chart:
        series = [Series(name=label, y=column(name)) for label, name in lines]
        return Chart(title=title, unit=unit, x=steps.x, series=series, zero=True, note=note)

    return [
        chart(
            "Variety and repetition",
            "share",
            ("distinct-2", "distinct_2"),
            ("distinct-1", "distinct_1"),
            ("seq-rep-4", "seq_rep_4"),
            note="distinct-n: different word n-grams of all; seq-rep-4: repeated 4-grams within a sample.",
        ),
        chart("Compression", "ratio", ("bytes / bytes after zlib", "compression_ratio")),
        chart("Reference’s code length", "bits/byte of text", ("bits per byte", "bits_per_byte")),
        chart("Entropy", "nats/token", ("entropy", "entropy")),
        chart("Length", "tokens/sample", ("length", "length")),
        chart(
            "Shares",
            "share",
            ("cut at the length limit", "truncated"),
            ("groups without spread", "groups_without_spread"),
        ),
    ]


def updates(steps: Steps) -> list[Chart]:
    def one(title: str, unit: str, extract: Extract, *, log: bool = False) -> Chart:
        series = [Series(name=title.lower(), y=steps.column(extract))]
        return Chart(title=title, unit=unit, x=steps.x, series=series, zero=not log, log=log)

    return [
        one("Step size, kl_old", "nats/sequence", lambda step: step.kl_old.value if step.kl_old else None),
        one("Sampler mismatch", "nats/token", lambda step: step.kl_sampler.value if step.kl_sampler else None),
        one("Gradient norm", "before clipping", lambda step: step.grad_norm, log=True),
        one("Clipped tokens", "share", lambda step: step.clip_fraction),
        one("Explained variance of the critic", "1 is perfect", lambda step: step.explained_variance),
        one("Seconds a step", "s", lambda step: step.seconds.get("total")),
    ]
