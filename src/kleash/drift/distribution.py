"""From a table of tokens to what an audit says of one set of texts. No torch."""

import math
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kleash.drift import statistics
from kleash.drift.passages import heat_maps, moved_tokens
from kleash.drift.predicting import prediction
from kleash.drift.records import Distribution, Interval, Part, Tail
from kleash.drift.table import CLASSES, ByteTable, TokenTable
from kleash.errors import RunError

#: Who wrote the texts: nobody of the two, or one of them.
Author = Literal["base", "tuned"]

SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)
#: Of tokens, for the concentration.
TOP = 0.01
#: Edges of the base's largest probability, as in exllamav3's qbench.
CONFIDENCE = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
#: First tokens of buckets of positions.
POSITIONS = (0, 1, 4, 16, 64, 256)

Floats = NDArray[np.float64]


def distribution(
    table: TokenTable, *, name: str, source: str, author: Author | None = None, seed: int = 0
) -> Distribution:
    """All that is said of one set of texts.

    Args:
        table: of both models on the texts.
        name: such as "off task". source: where the texts are from, for people.
        author: "tuned" for samples of the tuned model, where only the reverse KL is a mean of anything; "base" for
            samples of the base, where only the forward KL is; None for given texts.
        seed: of the intervals' draws.

    Raises:
        RunError: there is no token at all.
    """
    if not len(table):
        raise RunError(f"there is no token to compare on in {name} ({source}); give texts that are not empty")
    doc = table.document
    forward = None if author == "tuned" else table.forward
    reverse = None if author == "base" else table.reverse
    where = parts_of(table, seed) if forward is not None else {}
    new = table.new_mass

    def mean(values: NDArray[np.generic] | None, positive: bool = True) -> Interval | None:
        return None if values is None else _measured(statistics.mean(values, doc, positive=positive, seed=seed))

    whole = table.whole
    agree = None if table.same_top1 is None or not whole.any() else table.same_top1[whole]
    return Distribution(
        name=name,
        source=source,
        kind=table.kind,
        documents=len(np.unique(doc)),
        tokens=len(table),
        cut=table.cut,
        non_finite=table.non_finite,
        forward=tail(table, forward, seed),
        reverse=tail(table, reverse, seed),
        sampled=None if author is None or table.kind == "exact" else mean(_log_ratio(table, author), False),
        by_document=by_document(table, reverse if author == "tuned" else forward),
        jensen_shannon=mean(table.jensen_shannon),
        delta=mean(table.delta, False),
        prediction=None if author else prediction(table, seed),
        same_top1=None if agree is None else statistics.proportion(agree, doc[whole], seed=seed),
        flips=None if agree is None else int((~agree).sum()),
        sure_flips=None if table.sure_flip is None else int(table.sure_flip.sum()),
        rank=mean(None if table.rank is None else np.where(whole, table.rank, np.nan)),
        entropy_base=mean(table.entropy_base),
        entropy_tuned=mean(table.entropy_tuned),
        new_mass=None if new is None or not np.isfinite(new).any() else float(np.nanmean(new)),
        moved=moved_tokens(table),
        passages=heat_maps(table),
        domains=where.get("domains", []),
        classes=where.get("classes", []),
        confidence=where.get("confidence", []),
        positions=where.get("positions", []),
    )


def distribution_of_bytes(table: ByteTable, *, name: str, source: str) -> Distribution:
    """Of two models with different tokenizers: bits per byte, and nothing else.

    Raises:
        RunError: no text has a finite probability under both.
    """
    fine = np.isfinite(table.bits_base) & np.isfinite(table.bits_tuned)
    if not table.n_bytes[fine].sum():
        raise RunError(f"no text of {name} ({source}) has a finite probability under both models")
    return Distribution(
        name=name,
        source=source,
        documents=len(table.ids),
        tokens=None,
        bytes=int(table.n_bytes[fine].sum()),
        non_finite=int((~fine).sum()),
        bits_per_byte=table.bits_per_byte,
    )


def tail(table: TokenTable, values: Floats | None, seed: int = 0) -> Tail | None:
    """One direction's KL; None if not measured, or if no token has a finite one."""
    if values is None or not np.isfinite(values).any():
        return None
    median, q90, q95, q99, q999 = statistics.quantiles(values, table.document, SHARES)
    at = int(np.nanargmax(values))
    place = f"{table.documents[table.document[at]].id}, token {table.position[at] + 1}"
    return Tail(
        mean=statistics.mean(values, table.document, positive=True, seed=seed),
        median=median,
        q90=q90,
        q95=q95,
        q99=q99,
        q999=q999,
        max=float(values[at]),
        max_at=place,
        top_share=concentration(values),
    )


def concentration(values: Floats) -> float | None:
    """The share of all KL that the top 1 % of tokens carry (at least one token); None where there is none to carry."""
    fine = np.sort(values[np.isfinite(values)])
    total = fine.sum()
    return float(fine[-math.ceil(TOP * len(fine)) :].sum() / total) if total > 0 else None


def by_document(table: TokenTable, values: Floats | None) -> dict[str, tuple[int, float]]:
    """Document's id → tokens with a finite KL, and the sum of their KL."""
    if values is None:
        return {}
    fine = np.isfinite(values)
    count = len(table.documents)
    sizes = np.bincount(table.document[fine], minlength=count)
    sums = np.bincount(table.document[fine], values[fine], minlength=count)
    return {d.id: (int(n), float(s)) for d, n, s in zip(table.documents, sizes, sums, strict=True) if n}


def parts_of(table: TokenTable, seed: int = 0) -> dict[str, list[Part]]:
    """The tables of where it moved, by their names in `Distribution`; one whose column was not measured is left out."""
    domains = list(dict.fromkeys(d.domain for d in table.documents if d.domain is not None))
    number = np.array([domains.index(d.domain) if d.domain is not None else -1 for d in table.documents], np.int64)
    found = {
        "domains": _parts(table, number[table.document], domains, seed),
        "classes": _parts(table, table.token_class, list(CLASSES), seed),
        "positions": _parts(table, np.searchsorted(POSITIONS, table.position, "right") - 1, _position_names(), seed),
    }
    if table.confidence is not None:
        bucket = np.minimum(np.searchsorted(CONFIDENCE, table.confidence, "right") - 1, len(CONFIDENCE) - 2)
        bucket = np.where(np.isfinite(table.confidence), bucket, -1)
        found["confidence"] = _parts(table, bucket, _confidence_names(), seed)
    return found


def _parts(table: TokenTable, bucket: NDArray[np.int64], names: list[str], seed: int) -> list[Part]:
    assert table.forward is not None, "parts are of the forward KL"
    total = np.nansum(table.forward)
    found = []
    intervals = statistics.parts(table.forward, table.document, bucket, len(names), seed=seed)
    for number, (name, interval) in enumerate(zip(names, intervals, strict=True)):
        if interval is not None:
            own = float(np.nansum(table.forward[bucket == number]))
            share = own / float(total) if total > 0 else None
            found.append(Part(name=name, forward=interval, share=share, simultaneous=True))
    return found


def _confidence_names() -> list[str]:
    return [f"{a:.0%}–{b:.0%}" for a, b in pairwise(CONFIDENCE)]


def _position_names() -> list[str]:
    """Counted from 1, as people count."""
    ends = [*POSITIONS[1:], None]
    return [
        f"{a + 1}+" if b is None else str(b) if b == a + 1 else f"{a + 1}–{b}"
        for a, b in zip(POSITIONS, ends, strict=True)
    ]


def _log_ratio(table: TokenTable, author: Author) -> Floats:
    """log-prob of the sampled token under its author, less that under the other: its mean is the KL to the other."""
    return table.delta if author == "tuned" else -table.delta


def _measured(interval: Interval) -> Interval | None:
    """None for the mean of no finite value."""
    return interval if interval.n else None
