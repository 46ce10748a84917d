"""What several libraries share: answers' lengths, k3's traps, Ziegler's law."""

import math

from kleash.check.records import Found, Given, Number, Unread


def length_of(given: Given, asked: Number | None, key: str, default: Number) -> tuple[float, str]:
    """Tokens of an answer, and where the number is from: asked for, else the limit of the config."""
    if asked is not None:
        return float(asked), "as said by --tokens"
    limit = given.number(key, default)
    if limit is None or not limit > 0:
        return float(default), f"{key} is not told: its default"
    return limit, f"the limit {key}{'' if given.has(key) else ', by default'}: answers may be shorter (--tokens says)"


def unread(given: Given, key: str) -> str:
    """ " (beta = args.beta: not told here)" where a value is decided elsewhere."""
    value = given.settings.get(key)
    return f"{key} = {value.text}, which the file does not tell" if isinstance(value, Unread) else ""


def ziegler_traps(
    beta: Number | None, target: Number | None, horizon: Number | None, batch: Number | None
) -> list[Found]:
    """Traps of the law β ← β·(1 + clip(KL/target − 1, ±0.2)·batch/horizon)."""
    if beta == 0 or (target is not None and target <= 0) or (horizon is not None and horizon <= 0):
        told = ("not told by the file" if n is None else f"{n:g}" for n in (beta, target, horizon))
        return [Found(name="adaptive-stuck", here="beta {}, target {}, horizon {}".format(*told))]
    if horizon is None or batch is None:
        return []
    if batch > 5 * horizon:
        return [Found(name="adaptive-stuck", here=f"batch {batch:g} > 5 · horizon {horizon:g}")]
    steps = steps_to_tenfold(batch, horizon)
    if steps < 50:
        return []
    return [
        Found(name="adaptive-slow", here=f"batch {batch:g}, horizon {horizon:g}: ten times in {steps} steps at best")
    ]


def steps_to_tenfold(batch: Number, horizon: Number) -> int:
    """Updates at the law's bound until beta is ten times as large."""
    return math.ceil(math.log(10) / math.log1p(0.2 * batch / horizon))
