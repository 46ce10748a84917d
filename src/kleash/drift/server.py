"""Drift of a model that only a server has: a lower bound from likeliest tokens, an unbiased estimate from samples.

Neither is exact, and neither is ever put together with what is. The bound: both distributions over the tokens that are
known of both, all others as one; a divergence can only shrink when outcomes are put together (data processing). The
estimate: k3 of each drawn token, which needs its two log-probs only.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from kleash.drift.compare import Batch, Hooks, states
from kleash.drift.reading import Reader, Reading
from kleash.drift.scored import document_of
from kleash.drift.served import TOP, Position, Served, refuse_renormalised
from kleash.drift.sources import Model
from kleash.drift.table import Document, TokenTable, index_rows
from kleash.drift.texts import Text, prompt_ids
from kleash.errors import RunError, UsageError
from kleash.models.heads import apply

Side = Served | Model
#: Requests at a time.
TOGETHER = 8
#: What is left for all unknown tokens together is no number below this: rounding of the log-probs that were sent.
LEAST_TAIL = 1e-6


def reading_of(reader: Reader) -> Reading:
    """Both sides in the same tokens: those of a model that is at hand, whose relatives are served."""
    vocab = len(reader.tokenizer)
    template = "same" if reader.tokenizer.chat_template else "none"
    return Reading(base=reader, tuned=reader, shared=vocab, used_template=template, base_is_smaller=True)


def measure_served(
    base: Side, tuned: Side, documents: Sequence[Document], *, top: int = TOP, hooks: Hooks | None = None
) -> TokenTable:
    """At least so much: a lower bound of each token's divergences (kind "lower bound").

    One of the sides may be a model at hand, of which every probability is known: then the other's tokens decide.
    Ranks are those that the server gives; entropies and new mass are not measured.

    Raises:
        RunError: a server cannot be asked, gives no log-probs of prompt tokens, or none but the prompt's own tokens
            (`estimate_served` needs no more), or renormalised ones.
        UsageError: nothing to measure.
    """
    found, partial = _both(base, tuned, documents, top, hooks)
    for one in (p for pairs in found.values() for pair in pairs for p in pair):
        if not one.top:
            raise RunError("the server gives the prompt's own tokens' log-probs only: a sampled estimate can be had")
    rows = [_bounds(p, q) for n in sorted(found) for p, q in found[n]]
    bounds = np.array(rows, np.float64).reshape(-1, 3)
    bounds[~np.isfinite(bounds)] = np.nan
    pairs = [pair for n in sorted(found) for pair in found[n]]
    ranks = [q.rank for _, q in pairs]
    table = _table([documents[n] for n in sorted(found)], pairs, "lower bound", partial)
    return replace(
        table,
        forward=bounds[:, 0],
        reverse=bounds[:, 1],
        jensen_shannon=bounds[:, 2],
        same_top1=np.array([p.likeliest == q.likeliest for p, q in pairs], bool),
        rank=None if any(rank is None for rank in ranks) else np.array(ranks, np.int64),
        confidence=np.array([math.exp(max(p.known.values())) for p, _ in pairs]),
    )


def estimate_served(
    base: Side, tuned: Side, documents: Sequence[Document], *, drawn_by: str, hooks: Hooks | None = None
) -> TokenTable:
    """An unbiased estimate of the KL from samples of one side (kind "sampled"): k3 of each drawn token.

    Args:
        documents: of `served_samples` (or `samples`), drawn at temperature 1.
        drawn_by: "tuned" estimates KL(tuned‖base), in `reverse`; "base" KL(base‖tuned), in `forward`.

    Raises:
        RunError: a server cannot be asked, or gives no log-probs of prompt tokens.
        UsageError: nothing to measure.
    """
    found, partial = _both(base, tuned, documents, 1, hooks)
    pairs = [pair for n in sorted(found) for pair in found[n]]
    table = _table([documents[n] for n in sorted(found)], pairs, "sampled", partial)
    log_ratio = -table.delta if drawn_by == "tuned" else table.delta  # of the other side to the one that drew
    k3 = np.expm1(log_ratio) - log_ratio
    k3[~np.isfinite(k3)] = np.nan
    return replace(table, **{"reverse" if drawn_by == "tuned" else "forward": k3})


def served_samples(
    server: Served, reading: Reading, texts: Sequence[Text], *, max_new_tokens: int = 128, seed: int = 0
) -> list[Document]:
    """One completion of each prompt, drawn by the server at temperature 1 from its whole distribution.

    Raises:
        UsageError: no prompt.
        RunError: the server cannot be asked, or does not say which tokens it drew.
    """
    asked = [text for text in texts if text.prompt]
    if not asked:
        raise UsageError("there is no prompt to answer: these are texts to be read only")
    prompts = prompt_ids(asked, reading)
    with ThreadPoolExecutor(TOGETHER) as pool:
        keyed = list(enumerate(prompts))  # a seed for each: with one for all, their noise would be the same
        drawn = list(pool.map(lambda at: server.completion(at[1][1], max_new_tokens, seed * 65_537 + at[0]), keyed))
    foreign = next((token for new, _ in drawn for token in new if not 0 <= token < reading.shared), None)
    if foreign is not None:
        raise RunError(
            f"the server at {server.url} drew token {foreign}, and the tokenizer has {reading.shared:,}: it serves "
            "another model than the tokenizer's"
        )
    made = [
        document_of(text, ids, tuple(new), reading, ended=ended)
        for text, ids, (new, ended) in zip(asked, prompts, drawn, strict=True)
    ]
    return [document for document in made if document.ids]


def _both(
    base: Side, tuned: Side, documents: Sequence[Document], top: int, hooks: Hooks | None
) -> tuple[dict[int, list[tuple[Position, Position]]], str | None]:
    """Each document's positions on both sides, and why not all documents are there."""
    if not documents:
        raise UsageError("there is nothing to measure: no documents")
    hooks, total = hooks or Hooks(), sum(len(d.ids) for d in documents)
    found: dict[int, list[tuple[Position, Position]]] = {}
    done = 0
    pool = ThreadPoolExecutor(TOGETHER)
    try:
        for n, served in enumerate(pool.map(lambda d: _asked(base, tuned, d, top), documents)):
            found[n] = _completed(base, tuned, documents[n], served)
            done += len(found[n])
            hooks.progress(done, total)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, f"interrupted: {len(found)} of {len(documents)} documents measured"
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for side, asked in enumerate((base, tuned)):
        if isinstance(asked, Served):
            refuse_renormalised([pair[side] for pairs in found.values() for pair in pairs], asked.url)
    return found, None


def _asked(base: Side, tuned: Side, document: Document, top: int) -> list[list[Position] | None]:
    """What the servers say of a document; None for a side at hand."""
    return [
        side.positions([*prompt, *document.ids], top)[-len(document.ids) :] if isinstance(side, Served) else None
        for side, prompt in ((base, document.prompt_base), (tuned, document.prompt_tuned))
    ]


def _completed(
    base: Side, tuned: Side, document: Document, served: list[list[Position] | None]
) -> list[tuple[Position, Position]]:
    """The same with the side at hand. Not in a thread: its adapter is switched on and off."""
    p, q = served
    if p is None and q is not None and isinstance(base, Model):
        p = _at_hand(base, document, "base", q)
    if q is None and p is not None and isinstance(tuned, Model):
        q = _at_hand(tuned, document, "tuned", p)
    if p is None or q is None:
        raise UsageError("neither side is a server: two models at hand are compared exactly")
    return list(zip(p, q, strict=True))


@torch.no_grad()
def _at_hand(model: Model, document: Document, side: str, other: list[Position]) -> list[Position]:
    """The model's own log-probs of the tokens that a server told of, and of its own likeliest one."""
    hidden, head = states(model, Batch([0], [document]), side)
    found = []
    for start in range(0, len(other), 32):
        logits = apply(hidden[start : start + 32].to(head.weight.dtype), head).float()
        for row, theirs in zip(logits.log_softmax(-1).cpu(), other[start : start + 32], strict=True):
            ids = {*theirs.known, int(row.argmax())}
            known = {i: float(row[i]) for i in ids if i < len(row)}
            rank = 1 + int((row > row[theirs.token]).sum())
            found.append(Position(theirs.token, known, rank, theirs.top))
    return found


def _bounds(p: Position, q: Position) -> tuple[float, float, float]:
    """Forward and reverse KL and Jensen–Shannon over the tokens known of both, all others being one outcome."""
    if any(math.isnan(logprob) for side in (p, q) for logprob in side.known.values()):
        return math.nan, math.nan, math.nan  # sums would leave it out, and come out as if it were nothing
    both = sorted(p.known.keys() & q.known.keys(), key=lambda i: p.known[i], reverse=True)
    a, b = ([math.exp(side.known[i]) for i in both] for side in (p, q))
    tails = [1 - math.fsum(side) for side in (a, b)]
    if len(both) > 1 and min(tails) < LEAST_TAIL:  # no number: into the least of the known, so it stays a bound
        tails = [max(0.0, tail) + side.pop() for tail, side in zip(tails, (a, b), strict=True)]
    a, b = [*a, tails[0]], [*b, tails[1]]
    middle = [(x + y) / 2 for x, y in zip(a, b, strict=True)]
    return _kl(a, b), _kl(b, a), (_kl(a, middle) + _kl(b, middle)) / 2


def _kl(a: list[float], b: list[float]) -> float:
    if any(x > 0 and y <= 0 for x, y in zip(a, b, strict=True)):
        return math.inf
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


def _table(
    documents: Sequence[Document], pairs: list[tuple[Position, Position]], kind: str, partial: str | None
) -> TokenTable:
    number, position, token, classes = index_rows(documents)
    logps = np.array([(p.logp, q.logp) for p, q in pairs], np.float64).reshape(-1, 2)
    logps[~np.isfinite(logps)] = np.nan
    return TokenTable(
        kind="lower bound" if kind == "lower bound" else "sampled",
        documents=tuple(documents),
        document=number,
        position=position,
        token=token,
        token_class=classes,
        forward=None,
        reverse=None,
        jensen_shannon=None,
        logp_base=logps[:, 0],
        logp_tuned=logps[:, 1],
        same_top1=None,
        sure_flip=None,
        rank=None,
        entropy_base=None,
        entropy_tuned=None,
        confidence=None,
        new_mass=None,
        partial=partial,
    )
