"""How well both models predict given texts: a score that needs no task, on every text of a set. No torch."""

from dataclasses import replace

import numpy as np

from kleash.drift import statistics
from kleash.drift.records import PREDICTED, Prediction
from kleash.drift.table import CLASSES, TokenTable
from kleash.drift.thresholds import TEXTS_LOST

#: Tokens that spell a text; marks of turns and ends do not.
SPELLED = (CLASSES.index("content"), CLASSES.index("format"))


def prediction(table: TokenTable, seed: int = 0) -> Prediction | None:
    """Both models' scores on texts that neither wrote: 1 − (−log-prob of the text)/(that by its letters' frequencies).

    The letters are the bytes of all these texts, and their frequencies those in these texts. So the score has the same
    meaning for every tokenizer, and the range of any other: 1 at best, 0 for what a table of 256 numbers does. Texts
    with a token without a finite log-prob are left out. None where no text is left.

    Proved by: tests/drift/test_predicting.py::test_letters_by_hand
    """
    known = np.isfinite(table.logp_base) & np.isfinite(table.logp_tuned)
    count = len(table.documents)
    whole = np.bincount(table.document[~known], minlength=count) == 0
    spelled = np.isin(table.token_class, SPELLED) & whole[table.document]
    letters = [
        np.bincount(np.frombuffer(_spelling(table, n) if whole[n] else b"", np.uint8), minlength=256)
        for n in range(count)
    ]
    seen = np.sum(letters, 0)
    if not seen.any():
        return None
    nats = np.log(seen.sum() / np.maximum(seen, 1))
    cost = np.array([counted @ nats for counted in letters])
    spelt = cost > 0
    base, tuned = (
        np.bincount(table.document[spelled], column[spelled], minlength=count)[spelt].astype(np.float64)
        for column in (table.logp_base, table.logp_tuned)
    )
    change = statistics.of_totals(tuned - base, cost[spelt], seed=seed)
    total, tokens = float(cost[spelt].sum()), int(spelled.sum())
    return Prediction(
        base=1 + float(base.sum()) / total,
        tuned=1 + float(tuned.sum()) / total,
        change=replace(change, n=tokens),
        letters=total / tokens,
    )


def texts_lost(found: Prediction | None) -> bool | None:
    """Whether the tuned model surely predicts the texts worse by TEXTS_LOST; None where that cannot be told.

    It cannot where the base has less than that to lose: a model that never learnt such texts is no witness.
    """
    if found is None or found.change.high is None or found.base < TEXTS_LOST:
        return None
    return found.change.high <= -TEXTS_LOST


def written(found: Prediction) -> str:
    """ "0.75 → 0.44", and what that means."""
    return f"{found.base:.2f} → {found.tuned:.2f} ({PREDICTED})"


def _spelling(table: TokenTable, number: int) -> bytes:
    document = table.documents[number]
    pieces = zip(document.pieces, document.classes, strict=True)
    return "".join(piece for piece, token_class in pieces if token_class in SPELLED).encode("utf-8", "replace")
