"""Which way through the model, and how much at once: pure arithmetic over sizes, made once from a step at its largest.

A plan changes memory and time. Numbers change by rounding alone (another order of the same sums), so a run keeps the
plan it began with, over resumes too, and leaves it only where memory runs out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kleash.models.measured import Kept
from kleash.models.paths import PathName

#: How many times the arithmetic of `cached` the arithmetic of `packed` may be before packed is left. Chosen with room
#: to spare: `make bench-packed-or-cached` has packed behind from 1.3 on, but another path is another rounding.
PACKED_AT_MOST = 1.5
#: Share of the memory that is there which a plan may count on: estimates are no better than that.
COUNTED_ON = 0.8
_WIDE = 4  # bytes of a log-prob: fp32 at any precision


@dataclass(frozen=True, slots=True)
class Plan:
    """How a step goes through the model.

    groups: prompt groups at a time in reference and update; None: a whole minibatch. rows: completions at a time
    inside them (two_stage and plain); None: all. sampled: prompt groups sampled at a time; None: all of the step's.
    """

    path: PathName = "packed"
    groups: int | None = None
    rows: int | None = None
    sampled: int | None = None

    def __str__(self) -> str:
        groups = "a whole minibatch" if self.groups is None else _of(self.groups, "prompt group")
        rows = "" if self.rows is None else f", {_of(self.rows, 'completion')}"
        sampled = "" if self.sampled is None else f", sampling {_of(self.sampled, 'prompt')}"
        return f"{self.path}, {groups}{rows} at a time{sampled}{' at a time' if sampled else ''}"

    def for_groups_of(self, count: int, trained: int) -> "Plan":
        """The same for groups of `count` completions instead of `trained`: as many rows at a time."""

        def scaled(groups: int | None) -> int | None:
            return None if groups is None else max(1, groups * trained // count)

        return replace(self, groups=scaled(self.groups), sampled=scaled(self.sampled))


def _of(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A step at its largest: N prompts of at most P tokens, G completions each of at most T; groups in a minibatch.

    `asked`: groups at a time, where the user said so.
    """

    prompts: int
    groups: int
    group_size: int
    prompt: int
    length: int
    asked: int | None = None

    @property
    def rows(self) -> int:
        return self.prompts * self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A model, as far as memory and time go.

    weights: of the body's matrices. attention: heads × their width. Bytes: `element` of a number in the final hidden
    states, `stream` of one between layers; `kept`: what the layers keep. recomputed: activation checkpointing. bodies:
    that are differentiated together (a critic's own). gradients: bytes of those of all trained weights.
    """

    layers: int
    hidden: int
    attention: int
    vocab: int
    weights: int
    kept: Kept
    element: int = 4
    stream: int = 4
    recomputed: bool = False
    bodies: int = 1
    gradients: int = 0


def choose(size: Size, work: Work, paths: Sequence[PathName], free: int | None) -> Plan:
    """The quickest plan that fits into `free` bytes (None: not known, and everything fits).

    Where nothing fits it is the one that takes the least: the estimate may be too high, and memory that runs out is
    noticed. `work.asked` groups are kept in any case.
    """
    room = None if free is None else int(COUNTED_ON * free)
    plans = list(candidates(size, work, paths))
    taken = {plan: activations(size, work, plan) + gathering(size, work, plan) for plan in plans}
    chosen = next((plan for plan in plans if room is None or taken[plan] <= room), None)
    if chosen is None:
        chosen = min(plans, key=taken.__getitem__)
    sampled = None
    while room is not None and decoding(size, work, sampled) > room and (sampled or work.prompts) > 1:
        sampled = -(-(sampled or work.prompts) // 2)
    return replace(chosen, sampled=sampled)


def candidates(size: Size, work: Work, paths: Sequence[PathName]) -> Iterator[Plan]:
    """Every plan in the order of speed: whole groups by the quicker sharing path, then a few rows at a time."""
    quick: list[PathName] = ["packed", "cached"]
    if operations(size, work, "packed") > PACKED_AT_MOST * operations(size, work, "cached"):
        quick.reverse()
    able: list[PathName] = [path for path in quick if path in paths] or ["plain"]
    several = [None, *halvings(work.groups)] if work.asked is None else [work.asked]
    for path in able:
        yield from (Plan(path, groups) for groups in several)
    last: PathName = "two_stage" if "two_stage" in paths else "plain"
    yield from (Plan(last, several[-1], rows) for rows in (work.group_size, *halvings(work.group_size)))


def lowered(plan: Plan, work: Work, paths: Sequence[PathName]) -> Plan | None:
    """Half as much at a time, first in groups, then in rows; None where it is one row already."""
    groups = min(plan.groups or work.groups, work.groups)
    if groups > 1:
        return replace(plan, groups=-(-groups // 2))
    rows = min(plan.rows or work.group_size, work.group_size)
    if plan.path in ("packed", "cached"):
        path: PathName = "two_stage" if "two_stage" in paths else "plain"
        return replace(plan, path=path, groups=1, rows=-(-rows // 2))
    return replace(plan, groups=1, rows=-(-rows // 2)) if rows > 1 or plan.rows is None else None


def less_sampled(plan: Plan, work: Work) -> Plan | None:
    """Half as many prompts sampled at a time; None where it is one already."""
    sampled = min(plan.sampled or work.prompts, work.prompts)
    return replace(plan, sampled=-(-sampled // 2)) if sampled > 1 else None


def halvings(n: int) -> list[int]:
    """n/2, n/4, … down to 1, rounded up; nothing for 1."""
    found: list[int] = []
    while n > 1:
        n = -(-n // 2)
        found.append(n)
    return found


def operations(size: Size, work: Work, path: PathName) -> int:
    """Multiplications and additions of one prompt group's forward through the body."""
    P, G, T = work.prompt, work.group_size, work.length
    pairs = {"packed": (P + G * T) ** 2, "plain": G * (P + T) ** 2}.get(path, P**2 + G * T * (P + T))
    tokens = G * (P + T) if path == "plain" else P + G * T
    return 2 * size.weights * tokens + 4 * size.layers * size.attention * pairs


def activations(size: Size, work: Work, plan: Plan) -> int:
    """Bytes that a pass of the largest lengths keeps for its gradient, of the body, at the most that is there at once.

    The last token of a completion is not fed.
    """
    P, G, T = work.prompt, work.group_size, work.length - 1
    groups = min(plan.groups or work.groups, work.groups)
    rows = min(plan.rows or groups * G, groups * G)
    states = groups * G * work.length * size.hidden * size.element
    if plan.path == "packed":
        return states + sum(_piece(size, groups * (P + G * T), pairs=groups * (P + G * T) ** 2))
    if plan.path == "plain":
        return states + sum(_piece(size, rows * (P + T), pairs=rows * (P + T) ** 2))
    prompts, redone = _piece(size, groups * P, pairs=groups * P * P)
    part, again = _piece(size, rows * T, pairs=rows * T * (P + T), keys=rows * P, whole=plan.path == "two_stage")
    copied = size.bodies * size.kept.position * (rows * (P + T) + groups * P)
    return states + prompts + part + max(redone, again) + int(copied)


def _piece(size: Size, tokens: int, *, pairs: int, keys: int = 0, whole: bool = False) -> tuple[int, int]:
    """Bytes of tokens that go through together: kept until the backward pass, and made there for a while.

    keys: held against, beyond the tokens' own. whole: the piece itself is what is recomputed.
    """
    kept = int(size.bodies * (size.kept.token * tokens + size.kept.pair * pairs + size.kept.key * keys))
    if whole:
        return 0, kept
    if not size.recomputed:
        return kept, 0
    return size.bodies * size.layers * tokens * size.hidden * size.stream, kept // size.layers


def gathering(size: Size, work: Work, plan: Plan) -> int:
    """Bytes of gradients beside those of the passes before: of weights that a pass uses more than once.

    Autograd adds a weight's gradients up before it adds the sum to those that are there.
    """
    once = plan.path == "packed" or (plan.path == "plain" and plan.rows is None)
    several = (plan.groups or work.groups) < work.groups
    return size.gradients if several and not once else 0


def decoding(size: Size, work: Work, sampled: int | None) -> int:
    """Bytes of the sampler: keys and values of its rows at full length, and a few numbers for each next token."""
    prompts = min(sampled or work.prompts, work.prompts)
    rows = prompts * work.group_size
    positions = rows * (work.prompt + work.length - 1) + prompts * work.prompt
    caches = size.kept.position * positions + size.kept.state * (rows + prompts)
    return int(caches) + 4 * rows * size.vocab * _WIDE
