"""What the numbers of a run say, in plain words; every word here follows from a number and a stated rule."""

from dataclasses import dataclass

from kleash.records import Step
from kleash.report.charts import short
from kleash.report.log import Extract, Log, first_part, last_part, mean

#: The share of steps at the end over which KL is judged, and at both ends between which change is judged.
JUDGED = 1 / 3
ENDS = 1 / 10
#: |mean KL / target − 1| up to which a target counts as held, and as nearly held.
HELD, NEAR = 0.10, 0.25
#: Share of the first beta below which a controller has let go.
LOOSENED = 0.5
#: Relative fall of distinct-2 that is worth a sentence.
FELL = 0.30


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    small: str


def verdict(log: Log) -> str:
    """One to three sentences: the leash, the score, and the variety if it fell."""
    return " ".join(sentence for sentence in (leash(log), score(log), variety(log)) if sentence)


def leash(log: Log) -> str:
    unit = "nats/token" if log.per_token else "nats/sequence"
    value = mean(log.kl_value(step) for step in last_part(log.steps, JUDGED))
    if value is None:
        return "KL was not measured."
    if log.target is None:
        beta = mean(step.beta for step in last_part(log.steps, JUDGED)) or 0.0
        free = "with no leash (beta 0)" if beta == 0 else f"under beta {short(beta)} and no target"
        return f"The policy moved {value:.3g} {unit} from its reference, {free}."
    off = value / log.target.value - 1
    aim = f"against a target of {short(log.target.value)} ({round(100 * off):+d} %)"
    if abs(off) <= HELD:
        return f"The leash held: {value:.3g} {unit} {aim}."
    if off < -NEAR and log.steps[-1].beta < LOOSENED * log.steps[0].beta:
        let_go = f"Beta fell to {short(log.steps[-1].beta)}, so it is not the leash that holds it"
        return f"Below target: {value:.3g} {unit} {aim}. {let_go}: a higher learning rate, or more steps, goes further."
    near = "Nearly on target" if abs(off) <= NEAR else "Above target" if off > 0 else "Below target"
    return f"{near}: {value:.3g} {unit} {aim}."


def change(log: Log, extract: Extract) -> tuple[float, float] | None:
    """Means over the first and the last tenth of the steps."""
    before = mean(extract(step) for step in first_part(log.steps, ENDS))
    after = mean(extract(step) for step in last_part(log.steps, ENDS))
    return None if before is None or after is None else (before, after)


def score(log: Log) -> str:
    ends = change(log, lambda step: step.score)
    if ends is None:
        return "The score was not measured."
    before, after = ends
    if f"{before:.3f}" == f"{after:.3f}":
        return f"The score stayed at {after:.3f}."
    return f"The score {'rose' if after > before else 'fell'} from {before:.3f} to {after:.3f}."


def variety(log: Log) -> str:
    ends = change(log, lambda step: step.distinct_2)
    if ends is None or ends[0] <= 0 or ends[1] > ends[0] * (1 - FELL):
        return ""
    return f"Variety fell: distinct-2 from {ends[0]:.2f} to {ends[1]:.2f}."


def ending(log: Log) -> str:
    """How the run ended, and over what the numbers above are taken."""
    done = f"{log.end.step if log.end else len(log.steps)} steps"
    if log.end is None:
        how = f"{done}; no end recorded: it is still running, or was killed."
    elif log.end.reason == "finished":
        how = f"Finished after {done}."
    elif log.end.reason == "budget":
        how = f"Stopped after {done}: its KL went above the budget of {log.steps[-1].budget}."
    else:
        how = f"Ended after {done}: {log.end.reason}."
    return f"{how} KL is the mean over the last third of the steps; changes are from the first tenth to the last."


def tiles(log: Log) -> list[Tile]:
    """The four numbers to know first."""
    last = log.steps[-1]
    return [kl_tile(log), score_tile(log), beta_tile(last), text_tile(log)]


def kl_tile(log: Log) -> Tile:
    measured = [(log.kl_value(step), step.step) for step in log.steps]
    known = [(value, step) for value, step in measured if value is not None]
    value = mean(log.kl_value(step) for step in last_part(log.steps, JUDGED))
    aim = f"target {log.target}" if log.target else "nats/sequence, no target"
    peak = f"; highest {max(known)[0]:.3g} at step {max(known)[1]}" if known else ""
    return Tile("KL to the reference", "–" if value is None else f"{value:.3g}", aim + peak)


def score_tile(log: Log) -> Tile:
    ends = change(log, lambda step: step.score)
    if ends is None:
        return Tile("Score", "–", "not measured")
    return Tile("Score", f"{ends[1]:.3f}", f"{ends[1] - ends[0]:+.3f} since the start ({ends[0]:.3f})")


def beta_tile(last: Step) -> Tile:
    price = "price not measured" if last.price is None else f"price {last.price:.3g} score per nat"
    return Tile("Beta at the end", f"{last.beta:.3g}", price)


def text_tile(log: Log) -> Tile:
    ends = change(log, lambda step: step.distinct_2)
    lengths = change(log, lambda step: step.length)
    length = "" if lengths is None else f"length {lengths[0]:.0f} → {lengths[1]:.0f} tokens"
    if ends is None:
        return Tile("Variety, distinct-2", "–", length or "not measured")
    return Tile("Variety, distinct-2", f"{ends[1]:.2f}", f"was {ends[0]:.2f}" + (f"; {length}" if length else ""))
